"""An endpoint that speaks OpenAI's API without having models: it answers after given times, refuses, and stalls.

For trying load tests and testing them. `python -m loadgen.fake_endpoint --help`; it prints its URL.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

TOKENS = 1000
"""Size of its vocabulary: a word's token is its place in the text it came in, modulo this."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    models: Mapping[str, str] = field(default_factory=lambda: {"chat": "generate", "embed": "embed"})
    """Kind by name; an empty kind is not told."""
    service_s: float = 0.0
    """Until the first token, or the whole answer of a model that does not generate."""
    token_s: float = 0.0
    """Between tokens."""
    servers: int = 0
    """Requests served at once, the others wait; 0: all."""
    queue: int = 10**9
    """Requests that may wait; those beyond are refused."""
    refuse_every: int = 0
    """Each so manieth request is refused; 0: none."""
    stall_after_s: float = float("inf")
    """After the first request: from then on, for `stall_s`, nothing is answered."""
    stall_s: float = 0.0
    api_key: str = ""
    tokenizes: bool = True


@dataclass(frozen=True)
class Seen:
    """A request as it came; `at_s` on the monotonic clock."""

    at_s: float
    path: str
    headers: dict[str, str]
    body: Any


class FakeEndpoint:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.seen: list[Seen] = []
        self.port = 0
        self._room = asyncio.Semaphore(behaviour.servers or 10**9)
        self._waiting = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        open_ones = list(self._connections)
        for task in open_ones:
            task.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(writer, head[0].split(" ")[1], headers, body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._connections.discard(task)

    async def _answer(self, writer: asyncio.StreamWriter, path: str, headers: dict[str, str], body: bytes) -> None:
        behaviour = self.behaviour
        if behaviour.api_key and headers.get("authorization") != f"Bearer {behaviour.api_key}":
            return _error(writer, 401, "invalid_api_key")
        if path == "/v1/models":
            listed = [{"id": name} | ({"kind": kind} if kind else {}) for name, kind in behaviour.models.items()]
            return _whole(writer, 200, {"object": "list", "data": listed})
        asked = msgspec.json.decode(body) if body else {}
        if path == "/tokenize" and behaviour.tokenizes:
            return _whole(writer, 200, {"tokens": [at % TOKENS for at in range(len(asked["prompt"].split()))]})
        if path not in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings"):
            return _error(writer, 404, "not_found")
        self.seen.append(Seen(time.monotonic(), path, headers, asked))
        if behaviour.refuse_every and len(self.seen) % behaviour.refuse_every == 0:
            return _error(writer, 429, "refused")
        if self._waiting > behaviour.queue:
            return _error(writer, 429, "queue-full")
        self._waiting += 1
        async with self._room:
            self._waiting -= 1
            await asyncio.sleep(behaviour.service_s)
            await self._stall()
            return await self._serve(writer, path, asked)

    async def _serve(self, writer: asyncio.StreamWriter, path: str, asked: Any) -> None:
        count = _count(asked.get("prompt") or asked.get("input") or asked.get("messages"))
        if path == "/v1/embeddings":
            data = [{"index": 0, "embedding": [0.0, 1.0]}]
            return _whole(writer, 200, {"data": data, "usage": {"prompt_tokens": count, "total_tokens": count}})
        tokens = int(asked.get("max_tokens", 16))
        usage = {"prompt_tokens": count, "completion_tokens": tokens, "total_tokens": count + tokens}
        is_chat = path.endswith("chat/completions")
        if not asked.get("stream"):
            await asyncio.sleep(self.behaviour.token_s * (tokens - 1))
            text = " word" * tokens
            choice: dict[str, Any] = {"message": {"content": text}} if is_chat else {"text": text}
            return _whole(writer, 200, {"choices": [choice], "usage": usage})
        choice = {"delta": {"content": " word"}} if is_chat else {"text": " word"}
        piece = _event({"choices": [choice]})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for number in range(tokens):
            if number and self.behaviour.token_s:
                await asyncio.sleep(self.behaviour.token_s)
            writer.write(piece)
        writer.write(_event({"choices": [], "usage": usage}) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return None

    async def _stall(self) -> None:
        since = time.monotonic() - self.seen[0].at_s - self.behaviour.stall_after_s
        if 0 <= since < self.behaviour.stall_s:
            await asyncio.sleep(self.behaviour.stall_s - since)


def _count(given: Any) -> int:
    """Token ids count as such, words of texts too."""
    if isinstance(given, str):
        return len(given.split())
    if given and isinstance(given[0], dict):
        return sum(len(message["content"].split()) for message in given)
    return len(given or [])


def _whole(writer: asyncio.StreamWriter, status: int, answer: object) -> None:
    body = msgspec.json.encode(answer)
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def _error(writer: asyncio.StreamWriter, status: int, code: str) -> None:
    _whole(writer, status, {"error": {"message": code, "type": "error", "param": None, "code": code}})


def _event(answer: object) -> bytes:
    return _chunk(b"data: " + msgspec.json.encode(answer) + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="any that is free, if 0")
    parser.add_argument("--service-ms", type=float, default=0.0, help="until the first token or the whole answer")
    parser.add_argument("--token-ms", type=float, default=0.0, help="between tokens")
    parser.add_argument("--servers", type=int, default=0, help="requests served at once; 0: all")
    parser.add_argument("--queue", type=int, default=10**9, help="requests that may wait; others are refused")
    parser.add_argument("--refuse-every", type=int, default=0, help="each so manieth request is refused")
    parser.add_argument("--stall-after-s", type=float, default=float("inf"), help="after the first request")
    parser.add_argument("--stall-s", type=float, default=0.0, help="for so long nothing is answered then")
    given = parser.parse_args()
    endpoint = FakeEndpoint(
        Behaviour(
            service_s=given.service_ms / 1e3,
            token_s=given.token_ms / 1e3,
            servers=given.servers,
            queue=given.queue,
            refuse_every=given.refuse_every,
            stall_after_s=given.stall_after_s,
            stall_s=given.stall_s,
        )
    )
    await endpoint.start(given.port)
    sys.stdout.write(endpoint.url + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
