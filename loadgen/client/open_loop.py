"""Sends a demand to a server, each request when it is due, and reads the answers as they come."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from loadgen.client.addresses import addresses_of
from loadgen.client.limits import Limits
from loadgen.client.pacer import Pacer
from loadgen.client.pool import Pool
from loadgen.demand import Demand
from loadgen.overrun import Overrun, is_too_far_behind
from loadgen.results.record import NOT_SENT, Record
from loadgen.target.asks import Ask, Asks
from loadgen.target.url import TargetUrl

_LEAD_S = 0.2
"""Before the first request, so that nothing of the set-up is left to do."""
_PROGRESS_S = 0.5
_AHEAD = 64
"""Requests made before they are due, so that in a burst only sending is left to do."""
_SPARE_S = 0.001
"""With less than this to the next request nothing else is begun."""


@dataclass
class Tally:
    """Where a test stands."""

    requests: int
    sent: int = 0
    open: int = 0
    answered: int = 0
    other: int = 0
    elapsed_s: float = 0.0
    behind_s: float = 0.0
    """From when the request that goes out next was due."""


@dataclass(frozen=True)
class Driven:
    records: list[Record]
    cpu_share: float
    interrupted: bool
    overrun: Overrun | None = None
    """The generator stopped: it was too far behind."""


OnProgress = Callable[[Tally, list[Record]], None]


async def drive(
    url: TargetUrl,
    demand: Demand,
    asks: Asks,
    limits: Limits,
    on_progress: OnProgress | None = None,
    stop: asyncio.Event | None = None,
) -> Driven:
    """All requests of the demand, answered or given up; with `stop` set, those that were due until then."""
    addresses = await addresses_of(url)
    with _few_pauses():
        return await _Run(url, addresses, demand, asks, limits, on_progress, stop or asyncio.Event()).run()


class _Run:
    def __init__(
        self,
        url: TargetUrl,
        addresses: Sequence[str],
        demand: Demand,
        asks: Asks,
        limits: Limits,
        on_progress: OnProgress | None,
        stop: asyncio.Event,
    ) -> None:
        self._demand, self._asks, self._limits = demand, asks, limits
        self._on_progress, self._stop = on_progress, stop
        self._records: list[Record] = []
        self._ended: list[Record] = []
        """Since progress was last shown."""
        self._tally = Tally(len(demand))
        self._start_s = time.monotonic() + _LEAD_S
        self._cpu_share = 0.0
        self._next_due_s: float | None = None
        self._overrun: Overrun | None = None
        self._pool = Pool(url, limits, self._now, self._ended_one, addresses)

    async def run(self) -> Driven:
        work = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stop.wait())
        watching = asyncio.create_task(self._watch())
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        interrupted = not work.done()
        for task in (work, stopping, watching):
            task.cancel()
        await asyncio.gather(work, stopping, watching, return_exceptions=True)
        await self._pool.close()
        if not interrupted:
            work.result()
        return Driven(self._records, self._cpu_share, interrupted, self._overrun)

    async def _work(self) -> None:
        cpu = time.process_time()
        await self._send_all()
        self._cpu_share = (time.process_time() - cpu) / (self._now() + _LEAD_S)
        await self._pool.drained()

    async def _send_all(self) -> None:
        demand, pacer, pool = self._demand, Pacer(), self._pool
        made: deque[Ask] = deque()
        try:
            for row in range(len(demand)):
                due = self._next_due_s = float(demand.arrival_s[row])
                if self._gives_up(self._now() - due):
                    return
                record = Record(row, int(demand.model[row]), int(demand.stage[row]), due)
                if not made:
                    made.append(self._asks.make(row))
                while len(made) < min(_AHEAD, len(demand) - row) and self._now() + _SPARE_S < due:
                    made.append(self._asks.make(row + len(made)))
                    await asyncio.sleep(0)  # answers are read in between
                await pacer.until(self._start_s + due)
                self._records.append(record)
                if pool.open < self._limits.open:
                    pool.send(record, made.popleft())
                else:
                    made.popleft()
                    record.reason = NOT_SENT
                # Answers are read in between, even when the next request is due already.
                await asyncio.sleep(0)
            self._next_due_s = None
            await pacer.until(self._start_s + demand.duration_s)
        finally:
            pacer.close()

    def _gives_up(self, behind_s: float) -> bool:
        if is_too_far_behind(behind_s, self._demand.duration_s):
            sent = sum(record.reason != NOT_SENT for record in self._records)
            self._overrun = Overrun(sent, self._now(), behind_s)
            self._next_due_s = None
        return self._overrun is not None

    def _ended_one(self, record: Record) -> None:
        if self._on_progress is not None:
            self._ended.append(record)

    async def _watch(self) -> None:
        if self._on_progress is None:
            return
        tally = self._tally
        while True:
            await asyncio.sleep(_PROGRESS_S)
            recent, self._ended = self._ended, []
            answered = sum(record.is_answered for record in recent)
            tally.answered += answered
            tally.other += len(recent) - answered
            tally.sent, tally.open, tally.elapsed_s = len(self._records), self._pool.open, max(self._now(), 0.0)
            tally.behind_s = 0.0 if self._next_due_s is None else max(self._now() - self._next_due_s, 0.0)
            self._on_progress(tally, recent)

    def _now(self) -> float:
        return time.monotonic() - self._start_s


@contextlib.contextmanager
def _few_pauses() -> Iterator[None]:
    """What stands is never looked at again by the garbage collector, and what comes less often."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
