"""Connections to one server, as many as there are requests under way. A request is written in the moment it is sent:
no task is made for it, unless a connection must be opened first.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from typing import cast

from loadgen.client.limits import Limits
from loadgen.client.response import NotHttp, Response
from loadgen.results.record import Record
from loadgen.target.answers import Reading
from loadgen.target.asks import Ask
from loadgen.target.url import TargetUrl

_IDLE_S = 4.0
"""Servers commonly close connections idle for 5 s: ours are given up before, else a request meets a closed one."""
_SWEEP_S = 0.1
OnEnd = Callable[[Record], None]


class Pool:
    def __init__(
        self, url: TargetUrl, limits: Limits, now: Callable[[], float], on_end: OnEnd, addresses: Sequence[str]
    ) -> None:
        """`now`: seconds since the test began. `on_end` gets each record when its request has come to an end.
        `addresses`: of the host, the first that answers is connected to."""
        self._url, self._limits, self.now, self._on_end = url, limits, now, on_end
        self._host = f"host: {url.host_header}\r\n"
        self._ssl = ssl.create_default_context() if url.is_secure else None
        self._addresses = list(addresses)
        self._idle: list[_Connection] = []
        self._exchanges: dict[_Exchange, None] = {}
        """Open ones, by when they were sent."""
        self._connecting: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._sweeping = asyncio.create_task(self._sweep())

    @property
    def open(self) -> int:
        return len(self._exchanges)

    def send(self, record: Record, ask: Ask) -> None:
        exchange = _Exchange(self, record)
        self._exchanges[exchange] = None
        self._empty.clear()
        record.sent_s = self.now()
        lines = "".join(f"{name}: {value}\r\n" for name, value in ask.headers.items())
        head = f"POST {ask.path} HTTP/1.1\r\n{self._host}{lines}content-length: {len(ask.body)}\r\n\r\n"
        message = head.encode("latin-1") + ask.body
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                connection.send(exchange, message)
                return
        task = asyncio.create_task(self._connect(exchange, message))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def drained(self) -> None:
        """Until no request is open."""
        await self._empty.wait()

    async def close(self) -> None:
        """Gives up what is open."""
        self._sweeping.cancel()
        for task in self._connecting:
            task.cancel()
        for exchange in list(self._exchanges):
            exchange.fail("interrupted")
        await asyncio.gather(self._sweeping, *self._connecting, return_exceptions=True)
        for connection in self._idle:
            connection.abort()
        await asyncio.sleep(0)

    def ended(self, exchange: _Exchange) -> None:
        self._exchanges.pop(exchange)
        if not self._exchanges:
            self._empty.set()
        self._on_end(exchange.record)

    def take_back(self, connection: _Connection) -> None:
        self._idle.append(connection)

    async def _connect(self, exchange: _Exchange, message: bytes) -> None:
        connection = await self._connected()
        if connection is None:
            exchange.fail("no-connection")
        elif exchange.is_over:  # given up meanwhile
            self._idle.append(connection)
        else:
            connection.send(exchange, message)

    async def _connected(self) -> _Connection | None:
        """To the first address that answers, from then on asked first; None when none does."""
        loop = asyncio.get_running_loop()
        name = self._url.host if self._ssl is not None else None
        for address in list(self._addresses):
            try:
                _, connection = await loop.create_connection(
                    lambda: _Connection(self), address, self._url.port, ssl=self._ssl, server_hostname=name
                )
            except OSError:
                continue
            self._addresses.sort(key=lambda one: one != address)
            return connection
        return None

    async def _sweep(self) -> None:
        """Ends what takes too long, and connections that were idle for long."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            oldest = self.now() - self._limits.timeout_s
            late = []
            for exchange in self._exchanges:
                if exchange.record.sent_s > oldest:
                    break
                late.append(exchange)
            for exchange in late:
                exchange.fail("timeout")
            stale = time.monotonic() - _IDLE_S
            kept = [connection for connection in self._idle if connection.is_usable and connection.idle_since_s > stale]
            for connection in set(self._idle) - set(kept):
                connection.abort()
            self._idle = kept


class _Exchange:
    """One request under way."""

    __slots__ = ("_pool", "connection", "is_over", "reading", "record", "response")

    def __init__(self, pool: Pool, record: Record) -> None:
        self._pool, self.record = pool, record
        self.reading = Reading(record)
        self.response = Response(self.reading)
        self.connection: _Connection | None = None
        self.is_over = False

    def end(self) -> None:
        self.is_over = True
        self.reading.end(self._pool.now())
        self._pool.ended(self)

    def fail(self, reason: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        self.reading.fail(reason, self._pool.now())
        if self.connection is not None:
            self.connection.abort()
        self._pool.ended(self)


class _Connection(asyncio.Protocol):
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._exchange: _Exchange | None = None
        self.is_usable = True
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, exchange: _Exchange, message: bytes) -> None:
        assert self._transport is not None
        self._exchange = exchange
        exchange.connection = self
        self._transport.write(message)

    def abort(self) -> None:
        self.is_usable = False
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # nothing was asked
            self.abort()
            return
        try:
            exchange.response.feed(data, self._pool.now())
        except NotHttp:
            exchange.fail("not-http")
            return
        if exchange.response.state == "complete":
            self._finish(exchange)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_usable = False
        exchange = self._exchange
        if exchange is None:
            return
        exchange.response.close()
        if error is None and exchange.response.state == "complete":
            self._finish(exchange)
        else:
            exchange.fail("disconnected")

    def _finish(self, exchange: _Exchange) -> None:
        self._exchange = None
        if exchange.response.keeps_alive and self.is_usable:
            self.idle_since_s = time.monotonic()
            self._pool.take_back(self)
        else:
            self.abort()
        exchange.end()
