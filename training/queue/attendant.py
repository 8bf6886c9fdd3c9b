"""What a controller does to one job at a time: starts it, changes its devices, stops it, and says in the store what has
become of it. Decides nothing.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from placement.cluster import Cluster
from placement.errors import InputError
from training.queue.aside import aside
from training.queue.claims import Claims, Grant
from training.queue.decision import Step
from training.queue.devices import Devices
from training.queue.errors import LeaseLost, Stale
from training.queue.keeper import ALIVE
from training.queue.parked_runs import LOOK_S, PATIENCE_S, ParkedRuns
from training.queue.record import Observed, Process, Record
from training.queue.runner import Exited, Gone, Runner, Running, Seen
from training.queue.states import State

MAX_LOSSES = 100
"""A job whose processes vanish more often than this has failed."""
HEALTHY_S = 600.0
"""Unless they lived so long: then the count begins anew."""
LONGEST_BACK_OFF_S = 60.0

Note = Callable[[str, dict[str, Any]], None]
"""What happened, and facts about it: for a log."""


class Attendant:
    """`claims` is there while its controller has a lease."""

    def __init__(
        self, cluster: Cluster, devices: Devices, runners: Mapping[str, Runner], folder: Path, note: Note
    ) -> None:
        self._kinds = {device.name: device.kind for device in cluster.devices}
        self._devices, self._runners, self._folder, self._note = devices, runners, folder, note
        self._claims: Claims | None = None
        self.parked = ParkedRuns(runners)

    def move(self, cluster: Cluster) -> None:
        self._kinds = {device.name: device.kind for device in cluster.devices}

    @property
    def has_lease(self) -> bool:
        return self._claims is not None

    @property
    def claims(self) -> Claims:
        if self._claims is None:
            raise LeaseLost("this controller has no lease")
        return self._claims

    def take_lease(self, claims: Claims | None) -> None:
        self._claims = claims

    def can_resize(self, step: Step) -> bool:
        """Whether the job can change to its new devices in place."""
        record = step.record
        if not step.devices or record.state != "running" or step.share != record.share:
            return False
        return self._runners[record.type].can_resize(record, step.devices)

    def look(self, records: Sequence[Record]) -> list[Seen]:
        return [self._runners[record.type].look(record) for record in records]

    def beat(self, records: Sequence[Record], now: float) -> None:
        """Let their keepers, and those of parked runs, know that somebody looked after them at that time."""
        for record in (*records, *self.parked.records):
            with suppress(FileNotFoundError):
                os.utime(Path(str(record.folder)) / ALIVE, (now, now))

    async def start(self, step: Step) -> bool:
        """Whether it runs now."""
        record = step.record
        if not self._devices.can_take(record.id, step.devices):
            return False
        folder = record.folder or str(self._folder / record.id)
        observed = msgspec.structs.replace(step.observed, since=time.time())
        parked = self.parked.find(record)
        run = secrets.token_hex(8) if parked is None else str(record.run)
        grant = Grant(run, step.devices, step.share, observed, folder)
        how = "from memory " if parked else "again " if record.attempts else ""
        try:
            claimed = await aside(self.claims.claim, record.id, grant, f"{how}with {len(step.devices)} workers")
        except Stale:
            return False
        if not self._devices.can_take(record.id, step.devices):
            await self._leave(claimed, "suspended", "its devices are others' now")
            return False
        self._devices.take(record.id, step.devices)
        process = await (self._begin(claimed) if parked is None else self._resume(claimed, parked))
        if process is None:
            return False
        await aside(self.claims.runs, record.id, process, f"process {process.pid}")
        self._note("started", {"job": record.id, "workers": len(step.devices), "attempt": claimed.attempts})
        return True

    async def _begin(self, record: Record) -> Process | None:
        try:
            return await aside(self._runners[record.type].start, record)
        except (OSError, InputError) as error:
            await self.end(record, Exited(None, False, f"cannot be started: {error}"))
            return None

    async def _resume(self, record: Record, process: Process) -> Process | None:
        if await self.parked.resume(msgspec.structs.replace(record, process=process)):
            return process
        await self._leave(record, "suspended", "it did not come back from memory")
        return None

    async def resize(self, step: Step) -> bool:
        """Whether it could take what is new to it."""
        record = step.record
        new = set(step.devices) - set(record.devices)
        if not self._devices.can_take(record.id, new):
            return False
        if new:
            self._take(record, {*record.devices, *new})
        await aside(self._runners[record.type].resize, record, step.devices)
        try:
            await aside(self.claims.resized, record.id, step.devices, step.observed)
        except (LeaseLost, Stale):
            raise
        except Exception:  # the store is right
            await aside(self._runners[record.type].resize, record, record.devices)
            self._take(record, record.devices)
            raise
        self._take(record, step.devices)
        self._note("resized", {"job": record.id, "workers": len(step.devices)})
        return True

    def _take(self, record: Record, devices: Collection[str]) -> None:
        """But for those that are wanted back: it will leave them."""
        self._devices.take(record.id, [name for name in devices if self._devices.can_take(record.id, (name,))])

    async def stop(self, record: Record, why: str | None, step: Step | None = None) -> None:
        """Suspend it, for `why`, or cancel it when there is none; unless it has ended by itself just now. One that is
        suspended for a `step` waits in memory, if it can."""
        observed = {} if step is None or step.devices else {"observed": step.observed}
        if why is not None and step is not None and await self.parked.park(record):
            await self._leave(record, "suspended", f"{why}; waits in memory", **observed)
            return
        seen = await self._stopped(record)
        if isinstance(seen, Exited) and not seen.stopped:
            await self.end(record, seen)
        elif why is None:
            await self._leave(record, "cancelled", "cancelled")
        else:
            await self._leave(record, "suspended", why, **observed)

    async def fail(self, record: Record, why: str) -> None:
        """The queue cannot go on with it there."""
        if record.devices:
            await self._stopped(record)
        await self._leave(record, "failed", why)

    async def _stopped(self, record: Record) -> Seen:
        """How it was when it had been asked to end, and was killed when its grace was over."""
        runner = self._runners[record.type]
        await aside(runner.stop, record)
        deadline = time.monotonic() + record.job.grace + PATIENCE_S
        while isinstance(await aside(runner.look, record), Running) and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        return await aside(runner.kill, record)

    async def end(self, record: Record, seen: Seen) -> None:
        """It is no longer there: done, failed, to be tried again, or lost."""
        await aside(self._runners[record.type].kill, record)
        match seen:
            case Exited(code=code) if seen.is_success:
                await self._leave(record, "finished", str(seen), exit_code=code)
            case _ if record.cancelling:
                await self._leave(record, "cancelled", "cancelled")
            case Exited(stopped=True):
                await self._leave(record, "suspended", "was told to stop")
            case Exited(code=None):
                await self._again(record, str(seen), "losses", _losses(record), MAX_LOSSES)
            case Exited(code=code):
                await self._again(
                    record, str(seen), "failures", record.failures + 1, record.job.retries, exit_code=code
                )
            case Gone():
                why = "its processes were gone"
                await self._again(record, why, "losses", _losses(record), MAX_LOSSES)

    async def _again(self, record: Record, why: str, column: str, count: int, most: int, **changes: Any) -> None:
        changes |= {column: count}
        if count > most:
            await self._leave(record, "failed", why, **changes)
            return
        wait_s = min(2.0 ** min(count, 16) / 4, LONGEST_BACK_OFF_S)
        await self._leave(record, "suspended", f"{why}; {count} of {most}", due=time.time() + wait_s, **changes)

    async def _leave(self, record: Record, state: State, why: str, **changes: Any) -> None:
        changes = {"observed": self.released(record)} | changes
        with suppress(Stale):
            await aside(lambda: self.claims.leave(record.id, state, why, **changes))
        self._devices.give_back(record.id)
        self._note(state, {"job": record.id, "why": why})

    def released(self, record: Record) -> Observed:
        kind = self._kinds.get(record.devices[0], "any") if record.devices else "any"
        return record.observed.released(time.time(), len(record.devices) * record.share, kind)

    def preempted(self, record: Record) -> Observed:
        observed = self.released(record)
        return msgspec.structs.replace(observed, preemptions=observed.preemptions + 1)


def _losses(record: Record) -> int:
    """With the one just seen."""
    started = record.observed.last_start
    return 1 if started is not None and time.time() - started > HEALTHY_S else record.losses + 1
