"""What a fresh socket goes through before it is a link: on TCP the handshake, within its time. Unix sockets pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from serving.worker.handshake import Handshake, HandshakeError
from serving.worker.link import Link

OnEnd = Callable[["Greeting", Exception | None], None]


class Greeting(asyncio.Protocol):
    """Hands the socket over to `link` when the handshake is done; `on_end` is told, once, before any message."""

    def __init__(self, link: Link[Any, Any], handshake: Handshake | None, seconds: float, on_end: OnEnd) -> None:
        self.link = link
        self._handshake = handshake
        self._seconds = seconds
        self._on_end: OnEnd | None = on_end
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast(asyncio.Transport, transport)
        if self._handshake is None:
            self._hand_over(b"")
        else:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._give_up)
            stream.write(self._handshake.begin())

    def data_received(self, data: bytes) -> None:
        assert self._handshake is not None
        assert self._transport is not None
        if self._on_end is None:
            return
        try:
            self._transport.write(self._handshake.feed(data))
        except HandshakeError as error:
            self._transport.write(error.last_words)
            self._transport.close()
            self._end(error)
        if self._handshake.is_done:
            self._hand_over(self._handshake.rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionAbortedError("the other end went away during the handshake"))

    def abort(self) -> None:
        """Let the socket go if it is no link yet."""
        if self._on_end is not None and self._transport is not None:
            self._transport.abort()

    @property
    def host(self) -> str:
        """Whom to name in a log."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(peer[0]) if isinstance(peer, tuple) else "a local process"

    def _hand_over(self, rest: bytes) -> None:
        assert self._transport is not None
        self._transport.set_protocol(self.link)
        self.link.connection_made(self._transport)
        self._end(None)
        if rest:
            self.link.data_received(rest)

    def _give_up(self) -> None:
        assert self._transport is not None
        self._end(TimeoutError(f"no handshake within {self._seconds:g} s"))
        self._transport.abort()

    def _end(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self, error)
