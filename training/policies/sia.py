"""Sia: an integer program each round over (job, kind, count) configurations, goodput against the job's least.

Each job takes at most one configuration; counts are powers of two up to a node, then whole nodes. The value of a
configuration is its normalised goodput to a power, with what a restart costs taken off; no allocation has a small
penalty of its own. Solved by HiGHS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
from scipy.optimize import LinearConstraint, milp

from training.arrays import Floats, Ints
from training.view import Allocation, Information, View

sparse: Any = scipy.sparse


@dataclass(frozen=True)
class Sia:
    name: ClassVar[str] = "sia"
    power: float = 0.5
    waiting_penalty: float = 1.1
    round_s: float = 60.0
    information: Information = "none"
    seconds: float = 5.0
    """The longest that one program may take."""

    def allocate(self, view: View) -> Allocation:
        workers = np.zeros_like(view.workers)
        if not len(view):
            return Allocation(workers)
        job, kind, count = configurations(view)
        if len(job):
            value = values(view, job, kind, count, self.power) + self.waiting_penalty
            chosen = choose(job, kind, count, value, view.capacity, len(view), self.seconds)
            workers[job[chosen], kind[chosen]] = count[chosen]
        wake = (np.floor(view.now / self.round_s + 1e-9) + 1) * self.round_s
        return Allocation(workers, wake=float(wake))


def configurations(view: View) -> tuple[Ints, Ints, Ints]:
    """Rows (job, kind, count): powers of two within a node, then whole nodes, and the ends of a job's range."""
    rows: list[tuple[int, int, int]] = []
    sizes = [int(view.fleet.node_size[view.fleet.node_kind == kind].max()) for kind in range(len(view.capacity))]
    known: dict[tuple[int, int, int], list[int]] = {}
    for job in range(len(view)):
        low, high = int(view.fewest[job]), int(view.most[job])
        for kind in np.flatnonzero((view.speed[job] > 0) & (view.capacity > 0)).tolist():
            top = min(high, int(view.capacity[kind]))
            key = (low, top, kind)
            if key not in known:
                size = sizes[kind]
                counts = (
                    {1 << power for power in range(size.bit_length())} | set(range(size, top + 1, size)) | {low, top}
                )
                known[key] = sorted(count for count in counts if low <= count <= top)
            rows += [(job, kind, count) for count in known[key]]
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def values(view: View, job: Ints, kind: Ints, count: Ints, power: float) -> Floats:
    """Normalised goodput to a power, less for those that a restart would cost, [configurations]"""
    goodput = np.array([float(view.speedup_of(int(j), np.array([c]))[0]) for j, c in zip(job, count, strict=True)])
    goodput = goodput * view.speed[job, kind]
    least = np.full(len(view), np.inf)
    np.minimum.at(least, job, goodput)
    worth = (goodput / np.maximum(least[job], 1e-12)) ** power
    age = np.maximum(view.now - view.submit, 1.0)
    kept = age / (age + np.maximum(view.restart, 1.0) * (view.changes + 1))
    stays = view.workers[job, kind] == count
    value: Floats = np.where(stays | ~view.running[job], worth, worth * kept[job])
    return value


def choose(job: Ints, kind: Ints, count: Ints, value: Floats, capacity: Ints, jobs: int, seconds: float) -> Ints:
    """Which configurations to take: one a job, within the devices of each kind."""
    size = len(job)
    columns = np.arange(size)
    one_each = sparse.csr_array((np.ones(size), (job, columns)), shape=(jobs, size))
    devices = sparse.csr_array((count.astype(np.float64), (kind, columns)), shape=(len(capacity), size))
    limits = [LinearConstraint(one_each, -np.inf, 1.0), LinearConstraint(devices, -np.inf, capacity.astype(np.float64))]
    # Its presolve prints on stdout when it maps a solution back.
    options: Any = {"time_limit": seconds, "mip_rel_gap": 1e-3, "presolve": False}
    solve: Any = milp
    found = solve(-value, constraints=limits, integrality=np.ones(size), bounds=(0, 1), options=options)
    if found.x is None:  # out of time without any: keep whoever fits, best value for its devices first
        return _greedy(job, kind, count, value, capacity)
    return np.flatnonzero(found.x > 0.5)


def _greedy(job: Ints, kind: Ints, count: Ints, value: Floats, capacity: Ints) -> Ints:
    free, taken, chosen = capacity.copy(), set[int](), []
    for row in np.argsort(-value / count).tolist():
        if int(job[row]) not in taken and free[kind[row]] >= count[row]:
            taken.add(int(job[row]))
            free[kind[row]] -= count[row]
            chosen.append(row)
    return np.array(chosen, np.int64)
