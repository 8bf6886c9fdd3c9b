"""What a front end does not answer itself (metrics, health, /admin, jobs), it passes on to the process that does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec

from serving.http.call import Message, Receive, Send
from serving.http.door import Door
from serving.http.errors import Cancelled, HttpError, TooLarge, TooSlow, Unavailable, error_answer
from serving.http.settings import HttpSettings

OWN = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize", "/livez")
MOST_HEAD_BYTES = 2**16
_HOP = (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"trailer", b"upgrade")
_CHUNK = 2**16


class FrontDoor:
    """`door` answers what is its own, the server at `back` (a port of this machine) the rest."""

    def __init__(self, door: Door, back: int, settings: HttpSettings) -> None:
        self.door, self._back, self._settings = door, back, settings

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OWN or scope["path"].endswith("/infer"):
            await self.door(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._settings.body_s):
                body = await _read(receive, self._settings.body_bytes)
        except TimeoutError:
            await _say(send, TooSlow("the body did not come in time"))
            return
        except HttpError as error:
            await _say(send, error)
            return
        try:
            await self._pass_on(scope, body, send)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            await _say(send, Unavailable("the process that answers this is gone", retry_after_s=1.0))

    async def _pass_on(self, scope: Message, body: bytes, send: Send) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._back, limit=MOST_HEAD_BYTES)
        try:
            writer.write(_head(scope, len(body)) + body)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].split(b"\r\n")
            pairs = (line.split(b":", 1) for line in lines)
            headers = [(name.strip().lower(), value.strip()) for name, value in pairs]
            kept = [pair for pair in headers if pair[0] not in (b"connection", b"keep-alive", b"transfer-encoding")]
            await send({"type": "http.response.start", "status": int(first.split(b" ")[1]), "headers": kept})
            is_chunked = (b"transfer-encoding", b"chunked") in headers
            async for part in _chunks(reader) if is_chunked else _rest(reader):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            writer.close()


def _head(scope: Message, size: int) -> bytes:
    path = scope.get("raw_path") or scope["path"].encode()
    query = b"?" + scope["query_string"] if scope.get("query_string") else b""
    lines = [scope["method"].encode() + b" " + path + query + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in scope["headers"] if name.lower() not in _HOP]
    lines += [b"connection: close", b"content-length: %d" % size]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def _read(receive: Receive, most: int) -> bytes:
    parts, size, is_more = [], 0, True
    while is_more:
        message = await receive()
        if message["type"] != "http.request":
            raise Cancelled("the client went away before its request was complete")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise TooLarge(f"the body is larger than {most} bytes")
        is_more = message.get("more_body", False)
    return b"".join(parts)


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(_CHUNK):
        yield part


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _say(send: Send, error: HttpError) -> None:
    """Unless an answer has begun, in the shape of all errors."""
    body = msgspec.json.encode(error_answer(error))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    with suppress(RuntimeError):  # it has begun: the connection ends
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
