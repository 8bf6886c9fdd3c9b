"""Waiting for links: on a Unix socket of this user alone, or on TCP from those who know the secret."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Generic, cast

import msgspec

from placement.errors import InputError
from serving.worker.address import TcpAddress, UnixAddress, bind_unix, explain, parse_address
from serving.worker.greeting import Greeting
from serving.worker.handshake import HandshakeError, ListenerHandshake, check_secret
from serving.worker.link import Link, OnClose, OnMessage, R, S
from serving.worker.settings import LinkSettings

OnOpen = Callable[[Link[S, R]], None]

MAX_GREETINGS = 128
"""Sockets in their handshake at a time; more are turned away."""
MAX_HOSTS_LOGGED = 1000

_log = logging.getLogger(__name__)


async def listen(
    address: str,
    receive: Any,
    on_open: OnOpen[S, R],
    on_message: OnMessage[S, R],
    on_close: OnClose[S, R],
    *,
    secret: bytes | None = None,
    settings: LinkSettings | None = None,
) -> Listener[S, R]:
    """Take links at `address`; `on_open` gets each before its first message. TCP without a secret: InputError."""
    where = parse_address(address)
    listener = Listener(receive, (on_open, on_message, on_close), settings or LinkSettings())
    loop = asyncio.get_running_loop()
    if isinstance(where, UnixAddress):
        await listener.serve_unix(loop, where)
    else:
        await listener.serve_tcp(loop, where, check_secret(secret, str(where)))
    return listener


class Listener(Generic[S, R]):
    """`address` is where it can be reached (with the port that was chosen, if 0 was asked for)."""

    def __init__(
        self,
        receive: Any,
        callbacks: tuple[OnOpen[S, R], OnMessage[S, R], OnClose[S, R]],
        settings: LinkSettings,
    ) -> None:
        self.address = ""
        self._decoder: msgspec.msgpack.Decoder[R] = msgspec.msgpack.Decoder(receive)
        self._on_open, self._on_message, self._on_close = callbacks
        self._settings = settings
        self._secret: bytes | None = None
        self._server: asyncio.Server | None = None
        self._socket_file: tuple[UnixAddress, int] | None = None
        self._greetings: set[Greeting] = set()
        self._hosts_logged: set[str] = set()

    async def serve_unix(self, loop: asyncio.AbstractEventLoop, where: UnixAddress) -> None:
        bound = bind_unix(where)
        self.address = str(where)
        self._socket_file = where, where.path.stat().st_ino
        self._server = await loop.create_unix_server(self._greet, sock=bound)

    async def serve_tcp(self, loop: asyncio.AbstractEventLoop, where: TcpAddress, secret: bytes) -> None:
        self._secret = secret
        try:
            self._server = await loop.create_server(self._greet, where.host, where.port, family=_family(where))
        except OSError as error:
            raise InputError(f"{where}: cannot listen there: {explain(error)}") from error
        self.address = str(TcpAddress(where.host, self._server.sockets[0].getsockname()[1]))

    def close(self) -> None:
        """Take no more links and remove the socket's file; links that are open stay open."""
        if self._server is not None:
            self._server.close()
        for greeting in list(self._greetings):
            greeting.abort()
        if self._socket_file is not None:
            where, inode = self._socket_file
            self._socket_file = None
            if where.path.exists() and where.path.stat().st_ino == inode:  # not one that took its place
                where.path.unlink(missing_ok=True)

    def _greet(self) -> asyncio.Protocol:
        if len(self._greetings) >= MAX_GREETINGS:
            return _TurnAway()
        link = Link(self.address, self._decoder, self._on_message, self._on_close, self._settings)
        handshake = None if self._secret is None else ListenerHandshake(self._secret)
        greeting = Greeting(link, handshake, self._settings.handshake_s, self._end_greeting)
        self._greetings.add(greeting)
        return greeting

    def _end_greeting(self, greeting: Greeting, error: Exception | None) -> None:
        self._greetings.discard(greeting)
        if error is None:
            self._open(greeting.link)
        elif greeting.host not in self._hosts_logged and len(self._hosts_logged) < MAX_HOSTS_LOGGED:
            self._hosts_logged.add(greeting.host)
            level = logging.WARNING if isinstance(error, HandshakeError) else logging.INFO
            _log.log(level, "%s: turned away %s: %s (said once a host)", self.address, greeting.host, error)

    def _open(self, link: Link[S, R]) -> None:
        try:
            self._on_open(link)
        except Exception as error:  # as for messages: what handles links is another's
            _log.exception("%s: a link could not be taken", self.address)
            link.close(f"the link could not be taken: {type(error).__name__}: {error}")


class _TurnAway(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


def _family(where: TcpAddress) -> socket.AddressFamily:
    """One family, so that port 0 is one port."""
    return socket.AF_INET6 if ":" in where.host else socket.AF_INET
