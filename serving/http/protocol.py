"""uvicorn's HTTP connection with bounds on what a client may send before a request begins, and on how long it may take.

Without them a client that opens a connection and says nothing, or one letter a minute, stays for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving.http.settings import HttpSettings
from serving.http.transport import JoiningTransport

_MOST_PIPELINED = 16


def bounded_protocol(settings: HttpSettings) -> type[asyncio.Protocol]:
    """The class of connections for uvicorn's `http` setting."""

    class Bounded(_BoundedProtocol):
        limits = settings

    return Bounded


class _BoundedProtocol(HttpToolsProtocol):
    limits: HttpSettings

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoiningTransport(transport, self.loop))
        if len(self.connections) > self.limits.connections:
            transport.abort()
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if len(self.pipeline) > _MOST_PIPELINED:
            self._refuse(b"429 Too Many Requests")
        elif self._in_head and self._head_bytes > self.limits.header_bytes:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self._in_head and self._head_bytes and self._deadline is None:
            self._arm()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        if self._head_bytes > self.limits.header_bytes:
            self._check_head()
        self._in_head = False
        self._head_bytes = 0
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True

    def shutdown(self) -> None:
        """A connection on which no request has begun is closed at once."""
        super().shutdown()
        self._disarm()

    def _check_head(self) -> None:
        """What came at once may be a large head, or a small one with a body behind it."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.limits.header_bytes:
            raise httptools.HttpParserError("too much of a head")

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.limits.header_s, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        cycle: Any = self.cycle
        if self.transport.is_closing() or not (cycle is None or cycle.response_complete):
            return
        if self._head_bytes:
            self._refuse(b"408 Request Timeout")
        else:
            self.transport.close()

    def _refuse(self, status: bytes) -> None:
        self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """A client that does not even take what was sent is not waited for."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.limits.stall_s, self._abort)

    def _abort(self) -> None:
        if self in self.connections:
            self.transport.abort()
