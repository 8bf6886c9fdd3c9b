"""A request on its way: what `Router.submit` gives back, an iterator over what the request's group yields.

It waits for its start, calls `run`, passes on the items and tells what happens. It decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from router.live_group import Batch, Member
from router.model_facts import ModelFacts
from router.request import PRIORITIES, NotServed, Request
from router.statistics import ClassStatistics

if TYPE_CHECKING:
    from router.progress import Progress

G = TypeVar("G")
T = TypeVar("T")

RANKS = {priority: rank for rank, priority in enumerate(PRIORITIES)}


class Stage(Enum):
    NEW = auto()
    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


class Desk(Protocol):
    """Who decides for a kind of request."""

    def arrive(self, ticket: Ticket[Any, Any], now: float) -> int:
        """The rule's verdict; an admitted ticket waits from now on, or runs."""

    def expected(self, ticket: Ticket[Any, Any], now: float) -> float:
        """When its (first) answer would come if it were admitted now, by all that waits."""

    def withdraw(self, ticket: Ticket[Any, Any]) -> None:
        """One who waits goes."""

    def ended(self, ticket: Ticket[Any, Any], now: float, was_answered: bool) -> None:
        """One who runs goes."""


class Ticket(AsyncIterator[T], Generic[G, T]):
    """Iterate over it, or `aclose` it; a task that is cancelled while it iterates has closed it."""

    __slots__ = (
        "_progress",
        "_run",
        "_source",
        "_waiter",
        "alone",
        "arrived",
        "batch",
        "deadline",
        "desk",
        "engine",
        "error",
        "expected_at",
        "first_at",
        "generates",
        "goals",
        "handed_at",
        "is_aside",
        "is_retried",
        "is_scheduled",
        "items",
        "lane",
        "latest",
        "member",
        "model",
        "names",
        "number",
        "rank",
        "request",
        "slot",
        "stage",
        "statistics",
        "work_s",
    )

    def __init__(
        self,
        progress: Progress[G],
        desk: Desk,
        run: Callable[[G], AsyncIterator[T]],
        request: Request,
        number: int,
        facts: ModelFacts,
        statistics: ClassStatistics,
        now: float,
    ) -> None:
        self._progress = progress
        self._run = run
        self._source: AsyncIterator[T] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.desk = desk
        self.request = request
        self.number = number
        self.model = facts.index
        self.generates = facts.generates
        self.rank = RANKS[request.priority]
        self.arrived = now
        self.goals = facts.goals_of(request)
        self.work_s = facts.work_s(request)
        self.statistics = statistics
        self.deadline = self.latest = now + self.goals.first_s
        """`latest`: when even an idle group must have begun."""
        self.stage = Stage.NEW
        self.error: NotServed | None = None
        self.member: Member[G] | None = None
        self.items = 0
        self.first_at = 0.0
        self.is_retried = False
        # What the one-pass desk notes:
        self.batch: Batch | None = None
        self.is_scheduled = False
        self.is_aside = False
        # And the generating one:
        self.slot = self.lane = self.engine = -1
        self.names: tuple[int, ...] = ()
        self.handed_at = self.expected_at = 0.0
        self.alone = -1
        """`started` of its group, if it had nothing else to do when this one came."""

    def __aiter__(self) -> Ticket[G, T]:
        return self

    async def __anext__(self) -> T:
        while True:
            if self._source is None:
                if self.stage is Stage.WAITING:
                    await self._wait()
                if self.error is not None:
                    raise self.error
                if self.stage is Stage.ENDED:
                    raise StopAsyncIteration
            try:
                if self._source is None:
                    assert self.member is not None
                    self._source = self._run(self.member.handle).__aiter__()
                item = await self._source.__anext__()
            except StopAsyncIteration:
                self._progress.done(self)
                raise
            except asyncio.CancelledError:
                await self.aclose()
                raise
            except Exception as error:
                self._source = None
                if self._progress.failed(self, error):
                    continue
                raise
            self.items += 1
            if self.items == 1:
                self._progress.first(self)
            elif self.generates:
                self._progress.token(self)
            return item

    async def aclose(self) -> None:
        """Give up its place in the queue, or end what runs: it was cancelled, unless all has come."""
        source, self._source = self._source, None
        self._progress.cancelled(self)
        close: Any = getattr(source, "aclose", None)
        if close is not None:
            await close()

    async def finish(self) -> None:
        """Close it as answered: the client has all it wants, whatever the group would still yield."""
        self.suffice()
        await self.aclose()

    def suffice(self) -> None:
        """It counts as answered; whoever iterates over it is about to leave."""
        self._progress.done(self)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self._progress.cancelled(self)
            raise
        finally:
            self._waiter = None

    def wake(self) -> None:
        """What it waits for has come, good or bad."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
