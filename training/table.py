"""The jobs as columns: what each asks for, and what has been observed of it. One row a job, in order of arrival.

Progress is `done` seconds of work by `since`, growing at `rate` from `ready` on: the simulator sets the rate from the
job's curve, a live queue from what the job reports.
"""

from __future__ import annotations

import numpy as np

from placement.errors import InputError
from training.arrays import Floats, Ints
from training.curves import speedup_table
from training.fleet import Fleet
from training.jobs import Amdahl, Job

NO_CURVE = -1


class Table:
    """Columns are [rows], those by kind [rows, kinds]; times are seconds, NaN where something has not happened."""

    def __init__(self, jobs: list[Job], fleet: Fleet) -> None:
        self.jobs = jobs
        self.kinds = len(fleet.kinds)
        rows = len(jobs)
        self._ask(jobs, fleet)
        self._learn_curves(jobs, fleet)
        self._observe(rows)

    def _ask(self, jobs: list[Job], fleet: Fleet) -> None:
        """What each job asks for."""
        self.submit = np.array([job.arrival for job in jobs], np.float64)
        self.gpus = np.array([job.gpus for job in jobs], np.int64)
        self.fewest = np.array([job.fewest for job in jobs], np.int64)
        self.most = np.array([job.most for job in jobs], np.int64)
        self.priority = np.array([job.priority for job in jobs], np.float64)
        self.deadline = np.array([np.inf if job.deadline is None else job.deadline for job in jobs], np.float64)
        self.speed = np.array([fleet.speed_of(job) for job in jobs], np.float64).reshape(-1, self.kinds)
        self.mixed = np.array([job.mixed for job in jobs], np.bool_)
        self.share = np.array([job.share for job in jobs], np.float64)
        self.memory = np.array([float(job.memory) for job in jobs], np.float64)
        self.cpus = np.array([job.cpus for job in jobs], np.float64)
        self.spread_speed = np.array([job.spread_speed for job in jobs], np.float64)
        self.checkpoint = np.array([job.checkpoint for job in jobs], np.float64)
        self.restart = np.array([job.restart for job in jobs], np.float64)
        self.resize = np.array([job.resize for job in jobs], np.float64)
        self.user = _codes([job.user for job in jobs])
        self.group = _codes([job.group for job in jobs])
        self.model = _codes([job.model for job in jobs])
        room = np.where(self.speed > 0, fleet.capacity, 0)
        most = np.where(self.mixed, room.sum(axis=1), room.max(axis=1))
        if (short := most < self.fewest).any():  # even parts of devices are of one each
            row = int(np.argmax(short))
            raise InputError(
                f"job {jobs[row].id}: needs {self.fewest[row]} workers; the cluster has {most[row]} devices it can use"
            )

    def _learn_curves(self, jobs: list[Job], fleet: Fleet) -> None:
        """Amdahl's share, or the number of a table of speedups where the job has another curve."""
        self.serial = np.array([job.curve.serial if isinstance(job.curve, Amdahl) else 0.0 for job in jobs])
        self.curve = np.full(len(jobs), NO_CURVE, np.int64)
        known: dict[object, int] = {}
        tables: list[Floats] = []
        for row, job in enumerate(jobs):
            if isinstance(job.curve, Amdahl):
                continue
            key = repr((job.curve, job.batch, job.most))
            if key not in known:
                known[key] = len(tables)
                tables.append(speedup_table(job, int(fleet.node_size.max())))
            self.curve[row] = known[key]
        widest = max(map(len, tables), default=1)
        self.curves = np.array([np.pad(table, (0, widest - len(table)), "edge") for table in tables]).reshape(
            -1, widest
        )
        self.one = self.speedup(np.arange(len(jobs)), self.gpus)

    def _observe(self, rows: int) -> None:
        """What has been seen of each job: nothing yet."""
        self.estimate = np.full(rows, np.nan)
        """Predicted (or true) seconds of work in all, for policies that may know."""
        self.workers = np.zeros((rows, self.kinds), np.int64)
        self.total = np.zeros(rows, np.int64)
        self.in_use = np.ones(rows)
        """Share of a device that each of its workers holds now."""
        self.packed = np.full(rows, np.nan)
        """Its speed when it last shared devices it had not asked to share, against alone."""
        self.done, self.rate, self.ready, self.since = (np.zeros(rows) for _ in range(4))
        self.attained, self.run_s = np.zeros(rows), np.zeros(rows)
        """Device-seconds, and seconds with workers."""
        self.time_on = np.zeros((rows, self.kinds))
        self.time_before = np.zeros((rows, self.kinds))
        """`time_on` when the policy last asked to count anew."""
        self.first_start, self.last_start, self.finish = (np.full(rows, np.nan) for _ in range(3))
        self.queued_since = self.submit.copy()
        self.attained_before, self.run_before = np.zeros(rows), np.zeros(rows)
        """Before its last start."""
        self.waited = np.zeros(rows)
        """Just before its last start, in seconds."""
        self.tried = np.zeros(rows, np.int64)
        """The most workers it ever had."""
        self.starts, self.preemptions, self.migrations, self.resizes = (np.zeros(rows, np.int64) for _ in range(4))

    def __len__(self) -> int:
        return len(self.jobs)

    def speedup(self, rows: Ints, workers: Ints | Floats) -> Floats:
        """Throughput at so many workers against one, [rows]; 0 at none."""
        serial = self.serial[rows]
        speedup: Floats = workers / (1.0 + serial * np.maximum(workers - 1, 0))
        tables = self.curve[rows]
        if len(self.curves):
            at = np.minimum(workers, self.curves.shape[1] - 1).astype(np.int64)
            speedup = np.where(tables == NO_CURVE, speedup, self.curves[tables, at])
        return speedup

    def speedup_at(self, row: int, workers: int) -> float:
        """The same of one row."""
        curve = self.curve[row]
        if curve == NO_CURVE:
            return workers / (1.0 + float(self.serial[row]) * (workers - 1))
        return float(self.curves[curve, min(workers, self.curves.shape[1] - 1)])

    def progress(self, rows: Ints, now: float) -> Floats:
        """Seconds of work done by `now`, [rows]"""
        began = np.maximum(self.since[rows], self.ready[rows])
        progress: Floats = self.done[rows] + self.rate[rows] * np.maximum(now - began, 0.0)
        return progress

    def settle(self, row: int, now: float) -> None:
        """Bring what was observed of one row up to `now`."""
        since = self.since[row]
        if now > since:
            began = max(since, self.ready[row])
            if now > began:
                self.done[row] += self.rate[row] * (now - began)
            spent = now - since
            held = self.total[row]
            if held:
                self.attained[row] += held * self.in_use[row] * spent
                self.run_s[row] += spent
                self.time_on[row, self.workers[row].argmax() if self.kinds > 1 else 0] += spent
        self.since[row] = now


def _codes(names: list[str]) -> Ints:
    """Numbers for names, in order of first appearance."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)
