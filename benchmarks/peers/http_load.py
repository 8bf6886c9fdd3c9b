"""Closed-loop load over plain sockets: so many connections, each with one request under way, for so many seconds.

As lean as Python allows, so that the other side is what is measured. Runs in a process of its own, on its own core:
python http_load.py PORT CONNECTIONS SECONDS CORE prints one JSON line.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from typing import cast

BODY = b'{"model":"noop","input":[1,2,3,4,5,6,7,8]}'
REQUEST = (
    b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


class Client(asyncio.Protocol):
    """Sends the next request when the answer to the last is complete."""

    def __init__(self, latencies: list[float], end_s: float) -> None:
        self._latencies, self._end_s = latencies, end_s
        self._received = b""
        self._began_s = 0.0
        self.failed = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        if not is_complete(received):
            self._received = received
            return
        now_s = time.perf_counter()
        self._latencies.append(now_s - self._began_s)
        self.failed += received[9:12] != b"200"
        self._received = b""
        if now_s < self._end_s:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.failed += exc is not None or time.perf_counter() < self._end_s
        self.done.set_result(None)

    def _send(self) -> None:
        self._began_s = time.perf_counter()
        self._transport.write(REQUEST)


def is_complete(received: bytes) -> bool:
    head, found, body = received.partition(b"\r\n\r\n")
    if not found:
        return False
    lower = head.lower()
    at = lower.find(b"content-length:")
    if at < 0:
        return body.endswith(b"0\r\n\r\n")  # chunked
    return len(body) >= int(lower[at + 15 :].split(b"\r\n", 1)[0])


async def load(port: int, connections: int, seconds: float) -> dict[str, float]:
    latencies: list[float] = []
    began_s = time.perf_counter()
    clients = [Client(latencies, began_s + seconds) for _ in range(connections)]
    loop = asyncio.get_running_loop()
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.wait([client.done for client in clients], timeout=seconds + 10)
    took_s = time.perf_counter() - began_s
    if not latencies:
        raise SystemExit("nothing was answered")
    latencies.sort()
    return {
        "requests": len(latencies),
        "failed": sum(client.failed for client in clients) + sum(not client.done.done() for client in clients),
        "per_s": len(latencies) / took_s,
        "p50_ms": 1e3 * latencies[len(latencies) // 2],
        "p99_ms": 1e3 * latencies[int(len(latencies) * 0.99)],
    }


def main() -> None:
    port, connections, seconds, core = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    os.sched_setaffinity(0, {core})
    gc.disable()
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.write(json.dumps(runner.run(load(port, connections, seconds))) + "\n")


if __name__ == "__main__":
    main()
