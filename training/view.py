"""What a policy may see, and what it answers. Pure values: a policy reads a View and returns an Allocation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, Protocol

import numpy as np

from training.arrays import Bools, Floats, Ints
from training.fleet import Fleet
from training.ledger import Held
from training.table import Table

Information = Literal["none", "predicted", "oracle"]
"""none: nothing of how long jobs run; predicted: an estimate that may be wrong; oracle: the truth."""
LEAST_S = 1e-6
"""A job that outlives its estimate is always about to end."""


@dataclass(frozen=True)
class View:
    """The jobs that have arrived and not ended, in order of arrival: columns [n], by kind [n, kinds]."""

    now: float
    rows: Ints
    fleet: Fleet
    open_nodes: Bools
    """Nodes that training may use now, [nodes]"""
    capacity: Ints
    """Devices of open nodes, [kinds]"""
    held: Held
    """Who holds which device."""
    free: Floats
    """The share of each device that nobody holds; the mechanism's own array, as the two below: read, never write."""
    free_memory: Floats
    free_cpus: Floats
    """[nodes]"""
    _table: Table = field(repr=False)
    information: Information = "none"
    finished: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows of the jobs that have ended, in that order."""
    counted_from: float = 0.0
    """When the policy last asked to count anew."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def submit(self) -> Floats:
        return self._table.submit[self.rows]

    @cached_property
    def gpus(self) -> Ints:
        return self._table.gpus[self.rows]

    @cached_property
    def fewest(self) -> Ints:
        return self._table.fewest[self.rows]

    @cached_property
    def most(self) -> Ints:
        return self._table.most[self.rows]

    @cached_property
    def priority(self) -> Floats:
        return self._table.priority[self.rows]

    @cached_property
    def deadline(self) -> Floats:
        return self._table.deadline[self.rows]

    @cached_property
    def speed(self) -> Floats:
        """A worker's throughput by kind against the kind it asked for; 0 where it cannot run, [n, kinds]"""
        return self._table.speed[self.rows]

    @cached_property
    def mixed(self) -> Bools:
        return self._table.mixed[self.rows]

    @cached_property
    def share(self) -> Floats:
        return self._table.share[self.rows]

    @cached_property
    def memory(self) -> Floats:
        return self._table.memory[self.rows]

    @cached_property
    def cpus(self) -> Floats:
        return self._table.cpus[self.rows]

    @cached_property
    def spread_speed(self) -> Floats:
        return self._table.spread_speed[self.rows]

    @cached_property
    def user(self) -> Ints:
        return self._table.user[self.rows]

    @cached_property
    def group(self) -> Ints:
        return self._table.group[self.rows]

    @cached_property
    def model(self) -> Ints:
        return self._table.model[self.rows]

    @cached_property
    def restart(self) -> Floats:
        return self._table.restart[self.rows]

    @cached_property
    def workers(self) -> Ints:
        """Held now, [n, kinds]"""
        return self._table.workers[self.rows]

    @cached_property
    def running(self) -> Bools:
        return self.total > 0

    @cached_property
    def total(self) -> Ints:
        """Workers held now, of all kinds."""
        return self._table.total[self.rows]

    @cached_property
    def progress(self) -> Floats:
        """Seconds of work done, at the speed of `gpus` workers."""
        return self._table.progress(self.rows, self.now)

    @cached_property
    def rate(self) -> Floats:
        """Progress each second, as last observed; 0 where it waits."""
        return self._table.rate[self.rows]

    @cached_property
    def packed(self) -> Floats:
        """Its speed when it last shared devices it had not asked to share, against alone; NaN where it never did."""
        return self._table.packed[self.rows]

    @cached_property
    def node_free(self) -> Ints:
        """Devices of open nodes that nobody holds, [nodes]"""
        taken = np.zeros(len(self.fleet.device_node), np.bool_)
        for devices in self.held.values():
            taken[devices] = True
        used = np.bincount(self.fleet.device_node[taken], minlength=len(self.open_nodes))
        return np.where(self.open_nodes, self.fleet.node_size - used, 0)

    @cached_property
    def attained(self) -> Floats:
        """Device-seconds received."""
        held = self.total * self._table.in_use[self.rows]
        return self._table.attained[self.rows] + held * (self.now - self._table.since[self.rows])

    @cached_property
    def run_s(self) -> Floats:
        spent = np.where(self.running, self.now - self._table.since[self.rows], 0.0)
        return self._table.run_s[self.rows] + spent

    @cached_property
    def time_on(self) -> Floats:
        """Seconds that it ran on each kind, [n, kinds]"""
        time_on = self._table.time_on[self.rows]
        running = np.flatnonzero(self.running)
        time_on[running, self.workers[running].argmax(axis=1)] += self.now - self._table.since[self.rows[running]]
        return time_on

    @cached_property
    def time_since(self) -> Floats:
        """The same since `counted_from`, [n, kinds]"""
        return self.time_on - self._table.time_before[self.rows]

    @property
    def changed(self) -> bool:
        """Whether jobs have come or gone since `counted_from`."""
        ended = len(self.finished) > 0 and self._table.finish[self.finished[-1]] > self.counted_from
        return bool(ended or (len(self.rows) and self._table.submit[self.rows[-1]] > self.counted_from))

    @cached_property
    def attained_before(self) -> Floats:
        """Device-seconds received before its last start."""
        return self._table.attained_before[self.rows]

    @cached_property
    def run_before(self) -> Floats:
        return self._table.run_before[self.rows]

    @cached_property
    def waited(self) -> Floats:
        """Seconds of its wait now, or of the one before it last started."""
        return np.where(self.running, self._table.waited[self.rows], self.now - self._table.queued_since[self.rows])

    @cached_property
    def tried(self) -> Ints:
        """The most workers it ever had."""
        return self._table.tried[self.rows]

    @cached_property
    def changes(self) -> Ints:
        """How often it was started, moved or resized."""
        table, rows = self._table, self.rows
        return table.starts[rows] + table.migrations[rows] + table.resizes[rows]

    @cached_property
    def last_start(self) -> Floats:
        return self._table.last_start[self.rows]

    @cached_property
    def estimate_s(self) -> Floats:
        """Seconds of work in all; only for policies that may know."""
        if self.information == "none":
            raise AssertionError("this policy's information class has no durations")
        return self._table.estimate[self.rows]

    @cached_property
    def remaining_s(self) -> Floats:
        """Seconds of work left, at the speed of `gpus` workers."""
        return np.maximum(self.estimate_s - self.progress, LEAST_S)

    @cached_property
    def finished_service(self) -> Floats:
        """Device-seconds of the jobs that have ended."""
        return self._table.attained[self.finished]

    def past_runs(self, latest: int) -> tuple[Floats, Ints]:
        """How many seconds the jobs that ended last ran, and on how many GPUs they asked to."""
        rows = self.finished[-latest:]
        return self._table.run_s[rows], self._table.gpus[rows]

    @property
    def curve_columns(self) -> tuple[Floats, Ints, Floats, Floats]:
        """Amdahl's share [n], number of the table of speedups [n] (-1 none), the tables, speedup at `gpus` [n]"""
        table, rows = self._table, self.rows
        return table.serial[rows], table.curve[rows], table.curves, table.one[rows]

    @property
    def arrived(self) -> int:
        """How many jobs have come, those that have ended included."""
        return len(self.rows) + len(self.finished)

    def past(self, first: int, last: int) -> tuple[Floats, Floats, Ints]:
        """Arrival, seconds of work and GPUs asked for, of the jobs that came as number `first` .. `last` - 1; the work
        as far as this policy may know it."""
        assert self.information != "none"
        assert last <= self.arrived
        table, which = self._table, slice(first, last)
        return table.submit[which], table.estimate[which], table.gpus[which]

    def speedup(self, workers: Ints) -> Floats:
        """Progress each second at so many workers of the asked kind, [n]"""
        return self._table.speedup(self.rows, workers) / self._table.one[self.rows]

    def speedup_of(self, job: int, workers: Ints) -> Floats:
        """The same of one job at several worker counts."""
        rows = np.full(len(workers), self.rows[job])
        speedup: Floats = self._table.speedup(rows, workers) / self._table.one[rows]
        return speedup


@dataclass(frozen=True)
class Allocation:
    """Who shall have what from now on."""

    workers: Ints
    """[n, kinds]; a row of zeros waits."""
    share: Floats | None = None
    """Of a device that each worker gets, [n]; the job's own where None."""
    nodes: Ints | None = None
    """Which nodes, as rows (job, node, workers), for jobs that take workers; the mechanism's choice where None."""
    move: Bools | None = None
    """Running jobs to place anew though their workers stay the same, [n]"""
    emptiest: bool = False
    """Whether parts of devices go where most is free, instead of where least is left over."""
    count_anew: bool = False
    """Let `time_since` begin now."""
    wake: float = np.inf
    """When to ask again, if nothing happens before."""


class Policy(Protocol):
    """A rule for sharing the fleet; `allocate` is a pure function of what it sees."""

    name: ClassVar[str]
    information: Information
    round_s: float
    """Decides only at multiples of so many seconds; 0: whenever something happens."""

    def allocate(self, view: View) -> Allocation: ...
