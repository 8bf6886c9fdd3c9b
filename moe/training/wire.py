"""The one wire for all that training exchanges: one operation at a time, in the same order on every rank.

Rank 0 decides: of the streams that have something to send, the first goes. It says so to the others, and they follow.
So chunks of gradients yield to tokens, and no rank ever has both under way. Knows nothing of what is sent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

_END = -1


class Stream(IntEnum):
    """What waits for the wire, the most urgent first. Ranks submit the operations of a stream in the same order."""

    TOKENS = 0
    GRADIENTS = 1
    EXPERT_GRADIENTS = 2


class WireBroken(RuntimeError):  # noqa: N818  (it says what happened)
    """An operation failed, on this rank or on one it waited for; nothing more can be exchanged."""


class Orders(Protocol):
    """How rank 0 tells the others what comes next."""

    @property
    def leads(self) -> bool: ...

    def tell(self, number: int) -> None: ...

    def hear(self) -> int: ...


class Ticket:
    """One operation that was handed over."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._over = threading.Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Until it is done; WireBroken if it will not be."""
        self._over.wait()
        if self._error is not None:
            raise WireBroken(f"{type(self._error).__name__}: {self._error}") from self._error

    def run(self) -> None:
        self._run()
        self._over.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._over.set()


class Carrier(Protocol):
    """Who takes operations to run beside the caller; a Wire is one."""

    def submit(self, stream: Stream, run: Callable[[], None]) -> Ticket: ...


class Wire:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._waiting: dict[Stream, deque[Ticket]] = {stream: deque() for stream in Stream}
        self._change = threading.Condition()
        self._is_closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="wire", daemon=True)
        self._thread.start()

    def submit(self, stream: Stream, run: Callable[[], None]) -> Ticket:
        ticket = Ticket(run)
        with self._change:
            assert not self._is_closing, "the wire is closed"
            if self._error is not None:
                ticket.fail(self._error)
            else:
                self._waiting[stream].append(ticket)
                self._change.notify()
        return ticket

    def close(self) -> None:
        """When all ranks have handed over all they will: what waits is still sent."""
        with self._change:
            self._is_closing = True
            self._change.notify()
        self._thread.join()

    def _serve(self) -> None:
        ticket: Ticket | None = None
        try:
            while (ticket := self._next()) is not None:
                ticket.run()
        except Exception as error:  # the thread's boundary: whoever waits must hear of it
            self._break(error, ticket)

    def _next(self) -> Ticket | None:
        """The operation whose turn it is on all ranks; None when there will be no more."""
        if self._orders.leads:
            stream = self._first()
            self._orders.tell(_END if stream is None else stream)
        else:
            number = self._orders.hear()
            stream = None if number == _END else Stream(number)
        if stream is None:
            return None
        with self._change:
            self._change.wait_for(lambda: self._waiting[stream])
            return self._waiting[stream].popleft()

    def _first(self) -> Stream | None:
        """The most urgent stream with something to send, once there is one; None when the wire closes."""

        def found() -> Stream | None:
            return next((stream for stream, waiting in self._waiting.items() if waiting), None)

        with self._change:
            self._change.wait_for(lambda: found() is not None or self._is_closing)
            return found()

    def _break(self, error: BaseException, running: Ticket | None) -> None:
        with self._change:
            self._error = error
            lost = [ticket for waiting in self._waiting.values() for ticket in waiting]
        for ticket in lost if running is None else [running, *lost]:
            ticket.fail(error)
