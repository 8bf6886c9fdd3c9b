"""One HTTP request and its answer. Leaving it early closes its connection, by which the server learns that nobody waits
any more; else the next request may use it. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from placement.errors import InputError

CONNECT_S = 10.0
MOST_IDLE_S = 1.0
"""So long after an answer a connection is used again: servers close idle ones after some seconds."""
MOST_BYTES = 64 * 2**20
"""Of an answer that is taken whole."""


class ExchangeFailed(ConnectionError):  # noqa: N818  (it says what happened)
    """The server is not there, or hung up before its answer was complete."""


@dataclass(frozen=True)
class Place:
    """Where a server answers."""

    host: str
    port: int
    is_tls: bool
    path: str
    """Before all paths that are asked, without a slash at its end."""
    key: str = ""
    socket: str = ""
    """Of this machine, where it listens instead of at a port."""

    def __str__(self) -> str:
        if self.socket:
            return f"unix:{self.socket}{self.path}"
        return f"{'https' if self.is_tls else 'http'}://{self.host}:{self.port}{self.path}"

    def __repr__(self) -> str:  # without the key
        return f"Place({self})"


def parse_place(url: str, key: str = "") -> Place:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    return Place(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/"), key)


class Stock:
    """Connections to one server that have carried an answer, for the next requests."""

    def __init__(self) -> None:
        self._idle: list[_Idle] = []

    def put(self, transport: asyncio.Transport) -> None:
        self._idle.append(_Idle(transport, self._idle, time.monotonic()))

    def take(self) -> asyncio.Transport | None:
        """The last one used, if it is not too long ago."""
        fresh_since = time.monotonic() - MOST_IDLE_S
        while self._idle:
            last = self._idle.pop()
            if last.since >= fresh_since and not last.transport.is_closing():
                return last.transport
            last.transport.close()
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().transport.close()


class _Idle(asyncio.Protocol):
    """A connection of which nobody wants anything: the server hangs up, or says what it was not asked."""

    def __init__(self, transport: asyncio.Transport, among: list[_Idle], since: float) -> None:
        self.transport, self.since, self._among = transport, since, among
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._among:
            self._among.remove(self)


class Exchange(asyncio.Protocol):
    """`on_body` gets the parts of the answer as they come; `ended` is its status, once all is there: then the
    connection goes to `stock`, if there is one. What `on_body` raises is what `ended` raises."""

    def __init__(self, request: bytes, on_body: Callable[[bytes], None], stock: Stock | None) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.is_answered = False
        """Something has come."""
        self.on_body = on_body
        self._request, self._stock = request, stock
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None

    def abandon(self) -> None:
        """Unless all is there, the server is told so."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's family
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.is_answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)
        except Exception as error:  # of the parser
            self._fail(ExchangeFailed(f"its answer makes no sense: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(ExchangeFailed(f"it hung up: {error or 'the answer is not complete'}"))

    # httptools'

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            if self._stock is not None and self._parser.should_keep_alive():
                self._stock.put(transport)
            else:
                transport.close()
        if not self.ended.done():
            self.ended.set_result(self.status)

    def _fail(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
        self.abandon()


async def open_exchange(
    place: Place,
    method: str,
    path: str,
    body: bytes | None,
    on_body: Callable[[bytes], None],
    stock: Stock | None = None,
) -> Exchange:
    """The request is on its way when this returns, over a new connection, which goes to `stock` in the end."""
    exchange = Exchange(_request(place, method, path, body, stock), on_body, stock)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            if place.socket:
                await loop.create_unix_connection(lambda: exchange, place.socket)
            else:
                await loop.create_connection(lambda: exchange, place.host, place.port, ssl=place.is_tls or None)
    except (OSError, TimeoutError) as error:
        raise ExchangeFailed(f"{place}: {error or 'no connection in time'}") from error
    return exchange


async def converse(
    place: Place, method: str, path: str, body: bytes | None, on_body: Callable[[bytes], None], stock: Stock
) -> int:
    """The answer's status, once all of it has come; left early, the server learns that nobody waits any more.

    Over a connection that was used before, if there is one. Where the server closes it before a word of the answer, as
    it may close any that is idle, the request is sent again over a new one.
    """
    transport = stock.take()
    if transport is not None:
        exchange = Exchange(_request(place, method, path, body, stock), on_body, stock)
        transport.set_protocol(exchange)
        exchange.connection_made(transport)
        try:
            return await exchange.ended
        except ExchangeFailed:
            if exchange.is_answered:
                raise
        finally:
            exchange.abandon()
    exchange = await open_exchange(place, method, path, body, on_body, stock)
    try:
        return await exchange.ended
    finally:
        exchange.abandon()


def _request(place: Place, method: str, path: str, body: bytes | None, stock: Stock | None) -> bytes:
    after = "close" if stock is None else "keep-alive"
    lines = [f"{method} {path} HTTP/1.1", f"host: {place.host}:{place.port}", f"connection: {after}", "accept: */*"]
    if place.key:
        lines.append(f"authorization: Bearer {place.key}")
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


@dataclass(frozen=True)
class Whole:
    """An answer that is taken whole."""

    status: int
    body: bytes


async def ask(place: Place, method: str, path: str, body: bytes | None = None, wait_s: float = 60.0) -> Whole:
    """An InputError: the answer is too large."""
    parts: list[bytes] = []

    def take(data: bytes) -> None:
        parts.append(data)
        if sum(map(len, parts)) > MOST_BYTES:
            raise InputError(f"{place}: the answer to {path} has over {MOST_BYTES} bytes")

    exchange = await open_exchange(place, method, path, body, take)
    try:
        async with asyncio.timeout(wait_s):
            return Whole(await exchange.ended, b"".join(parts))
    except TimeoutError:
        raise ExchangeFailed(f"{place}: no answer to {path} within {wait_s:g} s") from None
    finally:
        exchange.abandon()
