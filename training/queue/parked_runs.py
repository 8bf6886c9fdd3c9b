"""Runs that wait in memory while their jobs are suspended: parked by this process, and known to it alone. What another
has left is found by leftovers.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from training.queue.aside import aside
from training.queue.record import Process, Record
from training.queue.runner import Parking, Runner, Running
from training.queue.states import HOLDING

PATIENCE_S = 5.0
"""What a runner gets beyond the grace of its job."""
LOOK_S = 0.02


@dataclass
class ParkedRuns:
    runners: Mapping[str, Runner]
    _records: dict[str, Record] = field(default_factory=dict)

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(self._records.values())

    async def park(self, record: Record) -> bool:
        """Whether it holds no devices any more, and waits in memory; else it is to be stopped."""
        runner = self.runners[record.type]
        if not isinstance(runner, Parking) or not runner.can_park(record):
            return False
        try:
            await aside(runner.park, record)
        except OSError:
            return False
        self._records[record.id] = msgspec.structs.replace(record, devices=())
        return True

    def find(self, record: Record) -> Process | None:
        """The process of the job's latest run, where that is parked and alive."""
        parked = self._records.get(record.id)
        runner = self.runners[record.type]
        if parked is None or parked.run != record.run or not isinstance(runner, Parking):
            return None
        return parked.process if runner.can_resume(parked) else None

    async def resume(self, record: Record) -> bool:
        """Whether it goes on, on the record's devices; else nothing of it is left."""
        runner = self.runners[record.type]
        assert isinstance(runner, Parking)
        self._records.pop(record.id, None)
        try:
            await aside(runner.resume, record)
        except OSError:
            await aside(runner.kill, record)
            return False
        return True

    def take_unwanted(self, live: Sequence[Record], busy: Collection[str]) -> list[Record]:
        """Forget those that go on, and those that have ended; to be ended are those whose job has, or has another run
        now."""
        jobs = {record.id: record for record in live}
        unwanted = []
        for parked in self.records:
            if parked.id in busy:
                continue
            job = jobs.get(parked.id)
            is_latest = job is not None and job.run == parked.run
            is_alive = isinstance(self.runners[parked.type].look(parked), Running)
            if job is None or not is_latest or job.state in HOLDING or not is_alive:
                del self._records[parked.id]
            if is_alive and not is_latest:
                unwanted.append(parked)
        return unwanted

    async def end(self, record: Record) -> None:
        """That run alone: its job may have another by now."""
        self._records.pop(record.id, None)
        runner = self.runners[record.type]
        await aside(runner.stop, record)
        deadline = time.monotonic() + record.job.grace + PATIENCE_S
        while isinstance(await aside(runner.look, record), Running) and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
