"""The live queue: takes jobs from the store, lets a policy share out the devices, starts, stops and watches the jobs.

One loop on an event loop's clock; whatever blocks runs beside it, and devices that are wanted back do not wait for it.
All it knows is in the store or can be seen on the machine, so that after any end it goes on where it was.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placement.cluster import Cluster
from placement.errors import InputError
from training.lending import Held
from training.queue.allowed import allowed, fitting
from training.queue.aside import aside, to_its_end
from training.queue.attendant import Attendant, Note
from training.queue.claims import LEASE_S, register
from training.queue.decision import Decider, OpenDevices, Step, at_fault, recalled
from training.queue.devices import Devices
from training.queue.errors import LeaseLost
from training.queue.leftovers import end_leftovers
from training.queue.past import HISTORY, Past
from training.queue.record import Record
from training.queue.runner import Runner, Running
from training.queue.saved import saved_at
from training.queue.store import Store
from training.queue.works import PAUSE_S, Works, or_pause
from training.view import Policy


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
    """What a decision was made for; nothing to decide while it stays the same. It counts what may have come and gone
    between two looks."""

    jobs: frozenset[tuple[str, int]]
    """With how often each was started."""
    holding: frozenset[str]
    devices: frozenset[str]
    leaving: frozenset[str]
    recalls: int


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
        self._folder = settings.folder.absolute()
        self._attendant = Attendant(cluster, devices, runners, self._folder, note)
        self._decider, self._round_s = Decider(policy), policy.round_s
        self._decided: _Seen | None = None
        self._due = math.inf
        self._trouble = ""
        """What went wrong last, told once."""
        self._woken, self._recalled = asyncio.Event(), asyncio.Event()
        self._works = Works(self.wake, self._tell)
        """A job to which something is being done holds its devices until it is."""
        self._reading = asyncio.Lock()
        self._changes: int | None = None
        self._live: list[Record] = []
        """In order of arrival, what the store had after so many changes; of types that can be run here."""
        self._past = Past()
        self._recalls_begun = 0

    async def run(self) -> None:
        beside = [
            asyncio.create_task(self._beats(), name="training queue's lease"),
            asyncio.create_task(self._recalls(), name="training queue's recalls"),
        ]
        try:
            while True:
                await to_its_end(self._turn())
                with suppress(TimeoutError):  # wait_for would lose a cancellation that comes with the wake
                    async with asyncio.timeout(self.settings.look_s):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    @property
    def has_lease(self) -> bool:
        """Whether this is the controller of its name."""
        return self._attendant.has_lease

    def move(self, cluster: Cluster) -> None:
        """The devices are these from now on; what jobs had of others was taken back before."""
        self._cluster = cluster
        self._attendant.move(cluster)
        self.wake()

    def wake(self) -> None:
        """Look at once: something has been changed."""
        self._woken.set()
        self._recalled.set()

    def held(self) -> list[Held]:
        """What jobs of this controller have, by what was read of the store last."""
        now = time.time()
        return [
            Held(record.id, record.devices, record.job.fewest, max(now - saved_at(record), 0.0))
            for record in self._live
            if record.controller == self.settings.name and record.devices
        ]

    def wants(self) -> bool:
        """Whether a job that has not ended could have devices here, by what was read of the store last."""
        return any(record.controller in (None, self.settings.name) and not record.cancelling for record in self._live)

    async def recall(self) -> None:
        """Take back what is not open any more, at once; returns when no job holds any of it."""
        while works := await self._take_back():
            await asyncio.wait(works)

    async def begin(self) -> None:
        """Be the store's controller of this name; what one before has left running is this one's."""
        name, lease_s = self.settings.name, self.settings.lease_s
        self._attendant.take_lease(await aside(register, self.store, name, self._cluster, lease_s))
        self._decided = None
        for job in await aside(end_leftovers, self.store, self._folder):
            self._note("ended", {"job": job, "why": "left over by another controller"})
        for record in await self._mine():
            if self._devices.can_take(record.id, record.devices):
                self._devices.take(record.id, record.devices)

    async def step(self) -> None:
        """One look at everything, and whatever follows from it."""
        await self._take_back()
        ended, live = self._works.ended, await self._all()
        for record in live:
            if record.fault and self._may_have(record):
                await aside(self._attendant.claims.fail_unreadable, record.id)
        if ended == self._works.ended:
            for parked in self._attendant.parked.take_unwanted(live, frozenset(self._works)):
                self._works.begin(parked.id, self._attendant.parked.end(parked))
        mine = [record for record in live if record.controller == self.settings.name and record.id not in self._works]
        for record, seen in zip(mine, await aside(self._attendant.look, mine), strict=True):
            if not self._works.is_fresh(record.id, ended):
                continue
            if not isinstance(seen, Running):
                await self._works.do(record.id, self._attendant.end(record, seen))
            elif record.cancelling:
                self._send_away(record, None)
            elif record.process is None:  # left behind by a controller that could not write it down any more
                runs = aside(self._attendant.claims.runs, record.id, seen.process, "found running")
                await self._works.do(record.id, runs)
        await self._decide()

    async def stop(self) -> None:
        """Suspend everything that runs: it goes on when the queue is back. Nothing waits in memory then."""
        await self._works.all_over()
        parked = self._attendant.parked
        await asyncio.gather(*map(parked.end, parked.records), return_exceptions=True)
        with suppress(LeaseLost):
            claims, mine = self._attendant.claims, await self._mine()
            stops = (self._attendant.stop(record, "the server stops") for record in mine)
            troubles = await asyncio.gather(*stops, return_exceptions=True)
            for record, trouble in zip(mine, troubles, strict=True):
                if trouble is not None:
                    self._note("failed", {"job": record.id, "reason": str(trouble)})
            if not any(troubles):  # else something may still run: others wait until the lease is over
                await aside(claims.release)

    def _tell(self, job: str, error: BaseException) -> None:
        self._decided = None
        self._note("failed", {"job": job, "reason": _named(error)})

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
            reason = _named(error)
            if reason != self._trouble:
                self._note("failed", {"reason": reason})
            self._trouble = reason
            await asyncio.sleep(PAUSE_S)
        else:
            self._trouble = ""

    # Deciding

    async def _decide(self) -> None:
        now, ended = time.time(), self._works.ended
        live = await self._all()
        open_now = frozenset(self._devices.open())
        seen = self._seen(live, open_now, now)
        if seen != self._decided:
            self._due = min(self._due, self._round(now))
        if now < self._due:
            return
        try:
            steps, wake = await aside(self._ask, live, self._past.jobs, open_now, now)
        except InputError:
            if not await self._drop_at_fault(live, open_now, now):
                raise
            return
        self._due = max(wake, now + self.settings.look_s)
        # What changes from here on, be it by this decision, is looked at again: a job may be gone before the next line.
        self._decided = seen
        try:
            await self._follow(steps, ended)
        except Exception:
            self._decided = None
            raise

    def _ask(
        self, live: list[Record], past: list[Record], open_now: frozenset[str], now: float
    ) -> tuple[list[Step], float]:
        mine = [record for record in live if record.controller == self.settings.name]
        devices = self._to_share(mine, open_now)
        jobs = self._shown(live, devices, now)
        steps: list[Step] = []
        wake = math.inf
        if devices is not None:
            decision = self._decider.decide(jobs, fitting(past, devices.fleet), devices, now)
            steps, wake = list(decision.steps), decision.wake
        shown = {record.id for record in jobs}
        closed = [record for record in mine if record.id not in shown and not self._is_leaving(record)]
        return [*(Step(record, (), record.share, self._attendant.preempted(record)) for record in closed), *steps], wake

    def _to_share(self, mine: Sequence[Record], open_now: frozenset[str]) -> OpenDevices | None:
        busy = {device for record in mine if self._is_leaving(record) for device in record.devices}
        return OpenDevices.of(self._cluster, [name for name in open_now if name not in busy])

    def _shown(self, live: list[Record], devices: OpenDevices | None, now: float) -> list[Record]:
        """The jobs that the policy sees."""
        if devices is None:
            return []
        return allowed(live, self._may_have, devices.fleet, self.store.quotas(), now)

    async def _drop_at_fault(self, live: list[Record], open_now: frozenset[str], now: float) -> bool:
        """Whether jobs were to blame for a decision that could not be made: they fail, the others go on without."""
        devices = self._to_share([record for record in live if record.controller == self.settings.name], open_now)
        if devices is None:
            return False
        jobs, policy = await aside(self._shown, live, devices, now), self._decider.policy
        wrong = await aside(at_fault, jobs, devices, policy, now)
        for record in jobs:
            if record.id in wrong and record.id not in self._works:
                self._works.begin(record.id, or_pause(self._attendant.fail(record, wrong[record.id])))
        if not wrong:
            wrong = await aside(at_fault, fitting(self._past.jobs, devices.fleet), devices, policy, now)
            self._past.forget(wrong)
        return bool(wrong)

    def _may_have(self, record: Record) -> bool:
        return record.controller in (None, self.settings.name) and not self._is_leaving(record)

    def _is_leaving(self, record: Record) -> bool:
        return record.cancelling or record.id in self._works

    def _seen(self, live: Sequence[Record], devices: frozenset[str], now: float) -> _Seen:
        jobs = frozenset((record.id, record.observed.starts) for record in live if record.due <= now or record.devices)
        placed = frozenset(record.id for record in live if record.devices)
        return _Seen(jobs, placed, devices, frozenset(self._works), self._recalls_begun)

    def _round(self, now: float) -> float:
        return now if self._round_s <= 0 else math.ceil(now / self._round_s - 1e-9) * self._round_s

    async def _follow(self, steps: Sequence[Step], ended: int) -> None:
        """Those that cannot change in place are stopped, however long they take; what waits for their devices is
        decided on when they are gone. Where a job is no longer what was decided on, all is decided anew."""
        if not all(self._works.is_fresh(step.record.id, ended) for step in steps):
            self._decided = None
            return
        for step in steps:
            if step.record.devices and not self._attendant.can_resize(step):
                self._send_away(step.record, _reason(step), step)
        taken = {device for step in steps if step.record.id in self._works for device in step.record.devices}
        for step in sorted(steps, key=lambda step: not set(step.devices) < set(step.record.devices)):
            if not step.devices or step.record.id in self._works or taken & set(step.devices):
                continue
            act = self._attendant.resize if step.record.devices else self._attendant.start
            fresh = self._works.is_fresh(step.record.id, ended)
            if not fresh or not await self._works.do(step.record.id, act(step)):
                self._decided = None
                return

    def _send_away(self, record: Record, why: str | None, step: Step | None = None) -> None:
        self._works.begin(record.id, or_pause(self._attendant.stop(record, why, step)))

    # Taking back

    async def _take_back(self) -> list[asyncio.Task[Any]]:
        """Let jobs leave what is not open any more; what is being done to those that hold it."""
        if not self._attendant.has_lease:
            return []
        ended, mine = self._works.ended, await self._mine()
        while ended != self._works.ended:
            ended, mine = self._works.ended, await self._mine()
        open_now = frozenset(self._devices.open())
        holders = [record for record in mine if not open_now.issuperset(record.devices)]
        for record in holders:
            if record.id not in self._works:
                self._recalls_begun += 1
                stop = self._attendant.stop(record, None) if record.cancelling else self._give_up(record, open_now)
                self._works.begin(record.id, or_pause(stop))
        return [self._works[record.id] for record in holders]

    async def _give_up(self, record: Record, open_now: frozenset[str]) -> None:
        """What is left of its devices may do; else it has none. The policy is not asked."""
        step = await aside(self._left, record, open_now)
        if self._attendant.can_resize(step):
            try:
                await self._attendant.resize(step)
                return
            except OSError as error:
                self._note("failed", {"job": record.id, "reason": str(error)})
        await self._attendant.stop(record, _reason(step), step)

    def _left(self, record: Record, open_now: frozenset[str]) -> Step:
        devices = OpenDevices.of(self._cluster, sorted(open_now))
        if devices is not None and sum(name in open_now for name in record.devices) >= record.job.fewest:
            with suppress(InputError):  # its kind may be no longer there
                return recalled(record, devices, self._decider.policy, time.time())
        return Step(record, (), record.share, self._attendant.preempted(record))

    async def _recalls(self) -> None:
        """Beside the turns: a recall does not wait for the start of another job."""
        while True:
            await self._recalled.wait()
            self._recalled.clear()
            try:
                await self._take_back()
            except Exception as error:
                self._note("failed", {"reason": _named(error)})

    async def _mine(self) -> list[Record]:
        return [record for record in await self._all() if record.controller == self.settings.name]

    async def _all(self) -> list[Record]:
        """That have not ended."""
        async with self._reading:
            news = await aside(self.store.news, self._changes)
            if self._changes is None:
                self._past.add(await aside(self.store.ended, HISTORY))
            if news.jobs:
                self._past.add(news.jobs)
                known = {record.id: record for record in self._live}
                known |= {record.id: record for record in news.jobs if record.type in self.types}
                live = [record for record in known.values() if record.ended is None]
                self._live = sorted(live, key=lambda record: (record.arrival, record.number))
                self._works.forget(record.id for record in known.values() if record.ended is not None)
            self._changes = news.changes
        return self._live

    async def _beats(self) -> None:
        """Often enough that nobody takes this controller for gone."""
        while True:
            await asyncio.sleep(self.settings.lease_s / 6)
            if not self._attendant.has_lease:
                continue
            try:
                now = await aside(self._attendant.claims.renew)
                for record in await aside(self._attendant.claims.free_lost):
                    self._note("freed", {"job": record.id, "why": record.why})
                await aside(self._attendant.beat, await self._mine(), now)
            except LeaseLost as error:
                self._attendant.take_lease(None)
                self._note("lost its lease", {"reason": str(error)})
            except Exception as error:
                self._note("failed", {"reason": _named(error)})


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _reason(step: Step) -> str:
    if step.devices:
        return f"to be placed on {len(step.devices)} devices instead of {len(step.record.devices)}"
    return "its devices are others' now"
