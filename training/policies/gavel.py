"""Gavel: the best shares of time on each kind, by a linear program, then rounds that follow them.

X[i, j] is the share of time that job i runs on kind j. In each round the pairs (job, kind) with the greatest
X / (share of time received so far) run. Objectives: see OBJECTIVES; those without "perf" know nothing of kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from placement.errors import InputError
from training.arrays import Floats, Ints
from training.kernels import follow_priorities
from training.shares import equal_share, most_for_least, most_total, soonest_fair, water_filled
from training.view import Allocation, Information, View

OBJECTIVES = (
    *("max-min-fairness", "max-min-fairness-perf", "max-sum-throughput-perf", "finish-time-fairness-perf"),
    *("min-makespan-perf", "sjf-perf", "fifo-perf", "min-cost-perf", "hierarchical-perf"),
)


@dataclass(frozen=True)
class Gavel:
    name: ClassVar[str] = "gavel"
    objective: str = "max-min-fairness-perf"
    round_s: float = 360.0
    information: Information = "oracle"
    reset_s: float = 1920.0
    """When jobs come or go, what was received is counted anew after so long: shares of another time say little."""
    prices: tuple[float, ...] = ()
    """Of a device of each kind for an hour, in the fleet's order; equal where none are given."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective {self.objective!r} is not known; give one of {', '.join(OBJECTIVES)}")

    def allocate(self, view: View) -> Allocation:
        if not len(view):
            return Allocation(np.zeros((0, len(view.capacity)), np.int64))
        x = self.shares(view)
        anew = view.changed and view.now - view.counted_from >= self.reset_s
        received = np.zeros_like(x) if anew else view.time_since / max(view.now - view.counted_from, self.round_s)
        priority = np.where(x > 1e-9, x / np.maximum(received, 1e-6), 0.0)
        workers = in_rounds(view, priority, x)
        wake = (np.floor(view.now / self.round_s + 1e-9) + 1) * self.round_s
        return Allocation(workers, count_anew=anew, wake=float(wake))

    def shares(self, view: View) -> Floats:
        """X [n, kinds] of the objective."""
        speed, gpus, capacity = view.speed, view.gpus, view.capacity
        if self.objective == "max-min-fairness":
            return most_for_least(_fair(np.sign(speed), gpus, capacity), gpus, capacity).x
        if self.objective == "max-min-fairness-perf":
            return most_for_least(_fair(speed, gpus, capacity), gpus, capacity).x
        if self.objective == "max-sum-throughput-perf":
            return most_total(speed * gpus[:, None], gpus, capacity).x
        if self.objective == "min-makespan-perf":
            return most_for_least(speed / view.remaining_s[:, None], gpus, capacity).x
        if self.objective == "min-cost-perf":
            price = np.array(self.prices) if self.prices else np.ones(len(capacity))
            return most_total(speed / price, gpus, capacity).x
        if self.objective == "hierarchical-perf":
            return water_filled(_fair(speed, gpus, capacity) / _weights(view.group)[:, None], gpus, capacity).x
        if self.objective == "finish-time-fairness-perf":
            alone = view.estimate_s / np.maximum((speed * equal_share(gpus, capacity)).sum(axis=1), 1e-9)
            return soonest_fair(speed, gpus, capacity, view.now - view.submit, view.remaining_s, alone).x
        key = view.submit if self.objective == "fifo-perf" else view.remaining_s / speed.max(axis=1)
        return one_after_the_other(speed, gpus, capacity, np.argsort(key, kind="stable"))


def in_rounds(view: View, priority: Floats, x: Floats) -> Ints:
    """The pairs (job, kind) of one round, highest priority first, ties to greater shares; idle devices go to whoever
    can use them."""
    kind = np.broadcast_to(np.argsort(np.argsort(-view.speed.mean(axis=0))), x.shape)
    order = np.lexsort((-x.ravel(), -priority.ravel(), kind.ravel())).astype(np.int64)
    workers = np.zeros_like(view.workers)
    taken = np.zeros(len(view), np.bool_)
    follow_priorities(order, priority, view.gpus, view.speed, view.capacity.copy(), taken, workers)
    return workers


def one_after_the_other(speed: Floats, gpus: Ints, capacity: Ints, order: Ints) -> Floats:
    """Each job all its time on the fastest kind that those before it leave room on (FIFO and SJF)."""
    x = np.zeros_like(speed)
    free = capacity.astype(np.float64)
    for job in order.tolist():
        usable = np.flatnonzero((free >= gpus[job]) & (speed[job] > 0))
        if len(usable):
            kind = usable[np.argmax(speed[job, usable])]
            x[job, kind] = 1.0
            free[kind] -= gpus[job]
    return x


def _fair(speed: Floats, gpus: Ints, capacity: Ints) -> Floats:
    """Throughput against that of an equal share of everything, by worker."""
    alone = (speed * equal_share(gpus, capacity)).sum(axis=1)
    fair: Floats = speed / np.maximum(alone, 1e-12)[:, None]
    return fair


def _weights(group: Ints) -> Floats:
    """Of each job, when its group's part is shared out equally within it."""
    _, of, count = np.unique(group, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / count[of], np.float64)
