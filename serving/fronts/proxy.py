"""What a front end does not answer itself (metrics, health, /admin, jobs), it passes on to the process that does."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import msgspec

from router.request import NotServed
from serving.fronts.messages import Begin, Body, Pass
from serving.fronts.remote import RemoteRouter
from serving.http.call import Message, Receive, Send
from serving.http.door import Door
from serving.http.errors import Cancelled, HttpError, TooLarge, TooSlow, Unavailable, error_answer
from serving.http.settings import HttpSettings

OWN = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize", "/livez")
_HOP = (b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"te", b"trailer", b"upgrade")


class FrontDoor:
    """`door` answers what is its own, the process at the other end of the router's link the rest."""

    def __init__(self, door: Door, router: RemoteRouter, settings: HttpSettings) -> None:
        self.door, self._router, self._settings = door, router, settings

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OWN or scope["path"].endswith("/infer"):
            await self.door(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._settings.body_s):
                body = await _read(receive, self._settings.body_bytes)
            await self._pass_on(scope, body, receive, send)
        except TimeoutError:
            await _say(send, TooSlow("the body did not come in time"))
        except NotServed:
            await _say(send, Unavailable("the process that answers this is gone", retry_after_s=1.0))
        except HttpError as error:
            await _say(send, error)

    async def _pass_on(self, scope: Message, body: bytes, receive: Receive, send: Send) -> None:
        name, is_complete = f"{random.getrandbits(96):024x}", False
        exchange: asyncio.Queue[Begin | Body | None] = asyncio.Queue()
        self._router.pass_on(_passed(name, scope, len(body)), body, exchange.put_nowait)
        watching = asyncio.create_task(_watch(receive, exchange))
        try:
            while not is_complete and (came := await exchange.get()) is not None:
                if isinstance(came, Begin):
                    await send({"type": "http.response.start", "status": came.status, "headers": came.headers})
                    continue
                is_complete = came.is_last
                await send({"type": "http.response.body", "body": came.part, "more_body": not is_complete})
                if not is_complete:
                    self._router.took(name)
        finally:
            watching.cancel()
            if is_complete:
                self._router.complete(name)
            else:
                self._router.end(name, answered=False)


def _passed(name: str, scope: Message, size: int) -> Pass:
    headers = [(key, value) for key, value in scope["headers"] if key.lower() not in _HOP]
    headers.append((b"content-length", b"%d" % size))
    raw = scope.get("raw_path") or scope["path"].encode()
    return Pass(name, scope["method"], scope["path"], raw, scope["query_string"], headers)


async def _watch(receive: Receive, exchange: asyncio.Queue[Begin | Body | None]) -> None:
    """None: the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.put_nowait(None)


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


async def _say(send: Send, error: HttpError) -> None:
    """Unless an answer has begun, in the shape of all errors."""
    body = msgspec.json.encode(error_answer(error))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    with suppress(RuntimeError):  # it has begun: the connection ends
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
