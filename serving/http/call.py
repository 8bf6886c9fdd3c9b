"""One HTTP exchange: what was asked, and the way back. Bounds how much is read and how long is waited. Knows nothing of
models.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from serving.http.errors import Cancelled, TooLarge
from serving.http.settings import HttpSettings
from serving.http.watch import Reason, Watch

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = b"application/json"
_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_SMALL = 2**16
_DISCARD_BYTES = 2**24
_DISCARD_S = 1.0
_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Call:
    """Made for each request; `answer`, or `start_stream`, `write` and `end`, send what comes back."""

    __slots__ = (
        "_receive", "_send", "_settings", "_watch", "began_s", "facts", "headers", "id", "is_ended", "is_read",
        "is_started", "key", "scope", "sending_since_s", "status", "tenant",
    )  # fmt: skip

    def __init__(self, scope: Message, receive: Receive, send: Send, settings: HttpSettings) -> None:
        self.scope = scope
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.key = f"{random.getrandbits(96):024x}"
        """Ours alone, whatever ids clients give."""
        given = self.headers.get(b"x-request-id")
        self.id = given.decode() if given is not None and _ID.fullmatch(given) else self.key
        self.tenant = ""
        self.began_s = time.perf_counter()
        self.status = 0
        self.is_read = self.is_started = self.is_ended = False
        self.sending_since_s: float | None = None
        self.facts: dict[str, Any] = {}
        """What the log says about it."""
        self._receive, self._send, self._settings = receive, send, settings
        self._watch: Watch | None = None

    async def body(self) -> bytes:
        """All of it; TooLarge when it is more than the settings allow. From here on the task that runs is cancelled
        when the client goes, dawdles or stops reading, or when time is up."""
        most = self._settings.body_bytes
        if self._length() > most:
            await self._discard()
            raise self._too_large()
        task = asyncio.current_task()
        assert task is not None
        self._watch = Watch(self, task, self._receive, self._settings)
        message = await self._next()
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            body = await self._rest(body)
        if len(body) > most:
            raise self._too_large()
        self.is_read = True
        return body

    async def answer(
        self, body: bytes, status: int = 200, content_type: bytes = JSON, headers: Headers | None = None
    ) -> None:
        start: Headers = [
            (b"content-type", content_type),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", self.id.encode()),
        ]
        await self._begin(status, start if headers is None else start + headers)
        await self.write(body, more=False)

    async def start_stream(self) -> None:
        await self._begin(200, [*_STREAM_HEADERS, (b"x-request-id", self.id.encode())])

    async def write(self, body: bytes, more: bool = True) -> None:
        self.is_ended = not more
        self.sending_since_s = time.perf_counter()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self.sending_since_s = None

    async def end(self) -> None:
        await self.write(b"", more=False)

    async def pass_on(self, message: Message) -> None:
        """For answers that others make."""
        if message["type"] == "http.response.start":
            self.status, self.is_started = message["status"], True
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
        elif not message.get("more_body", False):
            self.is_ended = True
        await self._send(message)

    def unwatch(self) -> Reason | None:
        """Why the watch ended the task, if it did."""
        if self._watch is None:
            return None
        watch, self._watch = self._watch, None
        watch.stop()
        return watch.reason

    def has_unread_body(self) -> bool:
        """More than a connection should be kept for."""
        return not self.is_read and self._length() > _SMALL

    async def _begin(self, status: int, headers: Headers) -> None:
        self.status, self.is_started = status, True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def _length(self) -> int:
        """What the client says it sends; of a chunked body, more than is small."""
        length = self.headers.get(b"content-length")
        if length is None:
            return _SMALL + 1 if b"transfer-encoding" in self.headers else 0
        return int(length) if length.isdigit() and len(length) <= 18 else 2**62

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client went away before its request was complete")
        return message

    async def _rest(self, first: bytes) -> bytes:
        parts, size, is_more = [first], len(first), True
        while is_more:
            if size > self._settings.body_bytes:
                raise self._too_large()
            message = await self._next()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            is_more = message.get("more_body", False)
        return b"".join(parts)

    async def _discard(self) -> None:
        """A client that still sends would not see our answer: what is under way is taken in first, within bounds."""
        size = 0
        try:
            async with asyncio.timeout(_DISCARD_S):
                while size < _DISCARD_BYTES:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._settings.body_bytes} bytes")
