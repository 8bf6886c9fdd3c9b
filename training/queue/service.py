"""The live queue: takes jobs from the store, lets a policy share out the devices, starts, stops and watches the jobs.

One loop on an event loop's clock; whatever blocks runs beside it. All it knows is in the store or can be seen on the
machine, so that after any end it goes on where it was.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placement.cluster import Cluster
from training.queue.allowed import allowed, fitting
from training.queue.attendant import Attendant, Note, aside
from training.queue.claims import LEASE_S, register
from training.queue.decision import Decider, OpenDevices, Step
from training.queue.devices import Devices
from training.queue.errors import LeaseLost, StoreError
from training.queue.record import Record
from training.queue.runner import Runner, Running
from training.queue.store import Store
from training.view import Policy

HISTORY = 512
"""Ended jobs that policies and guesses see."""
PAUSE_S = 1.0
"""After something went wrong with the queue itself."""


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    name: str
    """Of the controller: the same after a restart, another's never."""
    folder: Path
    """Where jobs have their folders."""
    look_s: float = 0.2
    """Between two looks at jobs and store."""
    lease_s: float = LEASE_S


@dataclass(frozen=True)
class _Seen:
    """What a decision was made for; nothing to decide while it stays the same."""

    jobs: frozenset[str]
    holding: frozenset[str]
    devices: frozenset[str]
    leaving: frozenset[str]


class QueueService:
    """`run` until cancelled; `stop` then suspends what runs. Jobs of other types wait for other controllers."""

    def __init__(
        self,
        store: Store,
        cluster: Cluster,
        devices: Devices,
        runners: Mapping[str, Runner],
        policy: Policy,
        settings: QueueSettings,
        note: Note = lambda what, facts: None,
    ) -> None:
        self.store, self.settings = store, settings
        self.types = frozenset(runners)
        self._cluster, self._devices, self._note = cluster, devices, note
        self._attendant = Attendant(cluster, devices, runners, settings.folder, note)
        self._decider, self._round_s = Decider(policy), policy.round_s
        self._decided: _Seen | None = None
        self._due = math.inf
        self._trouble = ""
        """What went wrong last, told once."""
        self._woken = asyncio.Event()
        self._busy: dict[str, asyncio.Task[None]] = {}
        """Jobs that are being stopped; they hold their devices until they are gone."""
        self._reading = asyncio.Lock()
        self._changes: int | None = None
        self._live: list[Record] = []
        """In order of arrival, what the store had after so many changes; of types that can be run here."""

    async def run(self) -> None:
        beating = asyncio.create_task(self._beats(), name="training queue's lease")
        try:
            while True:
                await _to_its_end(self._turn())
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), self.settings.look_s)
                self._woken.clear()
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    def wake(self) -> None:
        """Look at once: something has been changed."""
        self._woken.set()

    async def begin(self) -> None:
        """Be the store's controller of this name; what one before has left running is this one's."""
        name, lease_s = self.settings.name, self.settings.lease_s
        self._attendant.take_lease(await aside(register, self.store, name, self._cluster, lease_s))
        self._decided = None
        for record in await self._mine():
            if self._devices.can_take(record.id, record.devices):
                self._devices.take(record.id, record.devices)

    async def step(self) -> None:
        """One look at everything, and whatever follows from it."""
        mine = [record for record in await self._mine() if record.id not in self._busy]
        for record, seen in zip(mine, await aside(self._attendant.look, mine), strict=True):
            if not isinstance(seen, Running):
                await self._attendant.end(record, seen)
            elif record.cancelling:
                self._send_away(record, None)
            elif record.process is None:  # left behind by a controller that could not write it down any more
                await aside(self._attendant.claims.runs, record.id, seen.process, "found running")
        await self._decide()

    async def stop(self) -> None:
        """Suspend everything that runs: it goes on when the queue is back."""
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        with suppress(LeaseLost):
            claims, mine = self._attendant.claims, await self._mine()
            stops = (self._attendant.stop(record, "the server stops") for record in mine)
            for record, trouble in zip(mine, await asyncio.gather(*stops, return_exceptions=True), strict=True):
                if trouble is not None:
                    self._note("failed", {"job": record.id, "reason": str(trouble)})
            await aside(claims.release)

    async def _turn(self) -> None:
        """One step; what goes wrong is told, and tried again."""
        try:
            if not self._attendant.has_lease:
                await self.begin()
            await self.step()
        except LeaseLost as error:
            self._attendant.take_lease(None)
            self._note("lost its lease", {"reason": str(error)})
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if reason != self._trouble:
                self._note("failed", {"reason": reason})
            self._trouble = reason
            await asyncio.sleep(PAUSE_S)
        else:
            self._trouble = ""

    # Deciding

    async def _decide(self) -> None:
        now = time.time()
        live = await self._all()
        open_now = frozenset(self._devices.open())
        seen = self._seen(live, open_now, now)
        if seen != self._decided:
            self._due = min(self._due, self._round(now))
        if now < self._due:
            return
        steps, wake = await aside(self._ask, live, open_now, now)
        self._due = max(wake, now + self.settings.look_s)
        # What changes from here on, be it by this decision, is looked at again: a job may be gone before the next line.
        self._decided = seen
        await self._follow(steps)

    def _ask(self, live: list[Record], open_now: frozenset[str], now: float) -> tuple[list[Step], float]:
        mine = [record for record in live if record.controller == self.settings.name]
        busy = {device for record in mine if self._is_leaving(record) for device in record.devices}
        devices = OpenDevices.of(self._cluster, [name for name in open_now if name not in busy])
        jobs: list[Record] = []
        steps: list[Step] = []
        wake = math.inf
        if devices is not None:
            jobs = allowed(live, self._may_have, devices.fleet, self.store.quotas(), now)
            decision = self._decider.decide(jobs, fitting(self.store.ended(HISTORY), devices.fleet), devices, now)
            steps, wake = list(decision.steps), decision.wake
        shown = {record.id for record in jobs}
        closed = [record for record in mine if record.id not in shown and not self._is_leaving(record)]
        return [*(Step(record, (), record.share, self._attendant.preempted(record)) for record in closed), *steps], wake

    def _may_have(self, record: Record) -> bool:
        return record.controller in (None, self.settings.name) and not self._is_leaving(record)

    def _is_leaving(self, record: Record) -> bool:
        return record.cancelling or record.id in self._busy

    def _seen(self, live: Sequence[Record], devices: frozenset[str], now: float) -> _Seen:
        jobs = frozenset(record.id for record in live if record.due <= now or record.devices)
        placed = frozenset(record.id for record in live if record.devices)
        return _Seen(jobs, placed, devices, frozenset(self._busy))

    def _round(self, now: float) -> float:
        return now if self._round_s <= 0 else math.ceil(now / self._round_s - 1e-9) * self._round_s

    async def _follow(self, steps: Sequence[Step]) -> None:
        """Those that cannot change in place are stopped, however long they take; what waits for their devices is
        decided on when they are gone."""
        for step in steps:
            if step.record.devices and not self._attendant.can_resize(step):
                self._send_away(step.record, _reason(step), step)
        taken = {device for step in steps if step.record.id in self._busy for device in step.record.devices}
        for step in sorted(steps, key=lambda step: not set(step.devices) < set(step.record.devices)):
            if not step.devices or step.record.id in self._busy or taken & set(step.devices):
                continue
            await (self._attendant.resize(step) if step.record.devices else self._attendant.start(step))

    def _send_away(self, record: Record, why: str | None, step: Step | None = None) -> None:
        task = asyncio.create_task(self._attendant.stop(record, why, step), name=f"stopping {record.id}")
        self._busy[record.id] = task

        def over(task: asyncio.Task[None]) -> None:
            del self._busy[record.id]
            if not task.cancelled() and (error := task.exception()) is not None:
                self._note("failed", {"job": record.id, "reason": f"{type(error).__name__}: {error}"})
            self.wake()

        task.add_done_callback(over)

    async def _mine(self) -> list[Record]:
        return [record for record in await self._all() if record.controller == self.settings.name]

    async def _all(self) -> list[Record]:
        """That have not ended."""
        async with self._reading:
            news = await aside(self.store.news, self._changes)
            if news.jobs:
                known = {record.id: record for record in self._live}
                known |= {record.id: record for record in news.jobs if record.type in self.types}
                live = [record for record in known.values() if record.ended is None]
                self._live = sorted(live, key=lambda record: (record.arrival, record.number))
            self._changes = news.changes
        return self._live

    async def _beats(self) -> None:
        """Often enough that nobody takes this controller for gone."""
        while True:
            await asyncio.sleep(self.settings.lease_s / 6)
            if not self._attendant.has_lease:
                continue
            try:
                await aside(self._attendant.claims.renew)
                for record in await aside(self._attendant.claims.free_lost):
                    self._note("freed", {"job": record.id, "why": record.why})
                await aside(self._attendant.beat, await self._mine())
            except LeaseLost as error:
                self._attendant.take_lease(None)
                self._note("lost its lease", {"reason": str(error)})
            except (OSError, StoreError) as error:
                self._note("failed", {"reason": str(error)})


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Whoever cancels waits until it is done: a job that is being started must be known before anything else is."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


def _reason(step: Step) -> str:
    if step.devices:
        return f"to be placed on {len(step.devices)} devices instead of {len(step.record.devices)}"
    return "its devices are others' now"
