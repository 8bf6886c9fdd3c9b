"""One HTTP request and its answer over a connection of its own. Leaving it early closes the connection, by which the
server learns that nobody waits any more. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

CONNECT_S = 10.0
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

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.host}:{self.port}{self.path}"

    def __repr__(self) -> str:  # without the key
        return f"Place({self})"


def parse_place(url: str, key: str = "") -> Place:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    return Place(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/"), key)


class Exchange(asyncio.Protocol):
    """`on_body` gets the parts of the answer as they come; `ended` is its status, once all is there."""

    def __init__(self, request: bytes, on_body: Callable[[bytes], None]) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.status = 0
        self._request = request
        self.on_body = on_body
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._is_whole = False

    def abandon(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio's

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of asyncio's family
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except Exception as error:  # of the parser, or of whoever takes the body
            self._fail(f"its answer makes no sense: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_whole:
            self._fail(f"it hung up: {error or 'the answer is not complete'}")

    # httptools'

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        self._is_whole = True
        if not self.ended.done():
            self.ended.set_result(self.status)
        if self._transport is not None:
            self._transport.close()

    def _fail(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(ExchangeFailed(reason))
        self.abandon()


async def open_exchange(
    place: Place, method: str, path: str, body: bytes | None, on_body: Callable[[bytes], None]
) -> Exchange:
    """The request is on its way when this returns."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {place.host}:{place.port}", "connection: close", "accept: */*"]
    if place.key:
        lines.append(f"authorization: Bearer {place.key}")
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    request = "\r\n".join([*lines, "", ""]).encode() + (body or b"")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, exchange = await loop.create_connection(
                lambda: Exchange(request, on_body), place.host, place.port, ssl=place.is_tls or None
            )
    except (OSError, TimeoutError) as error:
        raise ExchangeFailed(f"{place}: {error or 'no connection in time'}") from error
    return exchange


@dataclass(frozen=True)
class Whole:
    """An answer that is taken whole."""

    status: int
    body: bytes


async def ask(place: Place, method: str, path: str, body: bytes | None = None, wait_s: float = 60.0) -> Whole:
    parts: list[bytes] = []

    def take(data: bytes) -> None:
        parts.append(data)
        if sum(map(len, parts)) > MOST_BYTES:
            raise ValueError(f"over {MOST_BYTES} bytes")

    exchange = await open_exchange(place, method, path, body, take)
    try:
        async with asyncio.timeout(wait_s):
            return Whole(await exchange.ended, b"".join(parts))
    except TimeoutError:
        raise ExchangeFailed(f"{place}: no answer to {path} within {wait_s:g} s") from None
    finally:
        exchange.abandon()
