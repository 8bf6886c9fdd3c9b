"""Pollux: the allocation with the best mean goodput over fair shares, ((1/J) sum speedup_j^p)^(1/p).

A job's speedup is its goodput (its own curve, batch size tuned) against that at a fair share of the cluster. Changing
a running job costs it the part of its life that restarts take. Instead of a genetic search, workers go one by one to
the job whose next one raises the objective most, then pairs of jobs trade while that helps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Floats, Ints
from training.kernels import climb_speedups
from training.view import Allocation, Information, View

RESTART_S = 30.0
LEAST = 1e-3
"""Speedup of a job that waits, so that a power below 0 is finite."""


@dataclass(frozen=True)
class Pollux:
    name: ClassVar[str] = "pollux"
    power: float = -1.0
    round_s: float = 60.0
    information: Information = "none"

    def allocate(self, view: View) -> Allocation:
        workers = np.zeros_like(view.workers)
        wake = (np.floor(view.now / self.round_s + 1e-9) + 1) * self.round_s
        if not len(view):
            return Allocation(workers)
        gain = speedups(view)
        kind = int(view.capacity.argmax())
        counts = best_counts(gain, view, int(view.capacity[kind]), self.power)
        workers[:, kind] = counts
        return Allocation(workers, wake=float(wake))


def speedups(view: View) -> Floats:
    """Goodput at 0, 1, .. workers against that at a fair share, [n, most + 1]; 0 below the least a job runs with."""
    widest = int(min(view.most.max(), view.capacity.max()))
    # A job is offered at most twice what it has tried: beyond, nobody knows its goodput.
    most = np.clip(2 * view.tried, view.fewest, view.most)
    fair = np.maximum(np.clip(view.capacity.sum() // len(view), view.fewest, view.most), 1)
    base = view.speedup(fair)
    table = np.stack([view.speedup(np.full(len(view), count)) for count in range(widest + 1)], axis=1)
    counts = np.arange(widest + 1)
    possible = (counts >= view.fewest[:, None]) & (counts <= most[:, None])
    gains: Floats = np.where(possible, table / base[:, None], 0.0)
    return np.maximum(gains, LEAST)


def best_counts(gain: Floats, view: View, capacity: int, power: float) -> Ints:
    """Workers [n] that maximise the mean of speedups, with the cost of a change taken off."""
    age = np.maximum(view.now - view.submit, 1.0)
    kept = np.maximum(age - np.maximum(view.changes - 1, 0) * RESTART_S, 0.0) / (age + RESTART_S)
    now = np.minimum(view.total, gain.shape[1] - 1)
    worth = np.where(np.arange(gain.shape[1]) == now[:, None], gain, gain * kept[:, None])
    worth = np.maximum(worth, LEAST)
    value = np.sign(power) * worth**power if power else np.log(worth)
    counts = np.zeros(len(view), np.int64)
    climb_speedups(np.ascontiguousarray(value), view.fewest, np.minimum(view.most, gain.shape[1] - 1), capacity, counts)
    return counts


def fitness(gain: Floats, counts: Ints, power: float) -> float:
    """((1/J) sum speedup^p)^(1/p)"""
    mean = float((gain[np.arange(len(counts)), counts] ** power).mean())
    return float(mean ** (1 / power))
