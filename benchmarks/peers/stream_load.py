"""Clients that stream answers at one time over plain sockets, and count the events.

python stream_load.py PORT STREAMS PROMPT OUTPUT CORE prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import cast


class Client(asyncio.Protocol):
    def __init__(self, prompt: list[int], output: int) -> None:
        asked = {"model": "m", "prompt": prompt, "max_tokens": output, "temperature": 0}
        body = json.dumps(asked | {"ignore_eos": True, "stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        self.events = 0
        self.bytes = 0
        self.ended_s = 0.0
        self.last = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.events += data.count(b"data: ")
        self.bytes += len(data)
        self.last = data[-200:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended_s = time.perf_counter()
        self.done.set_result(None)


async def load(port: int, streams: int, prompt: int, output: int) -> dict[str, float]:
    chosen = random.Random(1)
    clients = [Client([chosen.randrange(256) for _ in range(prompt)], output) for _ in range(streams)]
    loop = asyncio.get_running_loop()
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.wait([client.done for client in clients])
    wall_s = max(client.ended_s for client in clients) - began_s
    incomplete = [client.last for client in clients if b"[DONE]" not in client.last or b'"error"' in client.last]
    if incomplete:
        raise SystemExit(f"{len(incomplete)} streams failed; the first: {incomplete[0]!r}")
    return {
        "wall_s": wall_s,
        "cpu_s": time.process_time() - cpu_s,
        "events": sum(client.events for client in clients),
        "bytes": sum(client.bytes for client in clients),
    }


def main() -> None:
    port, streams, prompt, output, core = map(int, sys.argv[1:6])
    os.sched_setaffinity(0, {core})
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.write(json.dumps(runner.run(load(port, streams, prompt, output))) + "\n")


if __name__ == "__main__":
    main()
