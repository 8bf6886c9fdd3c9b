"""Pollux: the allocation with the best mean goodput over fair shares, ((1/J) sum speedup_j^p)^(1/p).

A job's speedup is its goodput (its own curve, batch size tuned) against that at a fair share of the cluster. Changing
a running job costs it the part of its life that restarts take. Instead of a genetic search, workers go one by one to
the job whose next one raises the objective most, then pairs of jobs trade while that helps: on each kind of device for
itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from training.arrays import Bools, Floats, Ints
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
        gain, home = speedups(view), homes(view)
        for kind in range(len(view.capacity)):
            self._climb(view, gain, kind, home == kind, workers)
        if len(view.capacity) > 1:  # what is left goes to those who got nothing at home
            for kind in range(len(view.capacity)):
                self._climb(view, gain, kind, (view.speed[:, kind] > 0) & ~workers.any(axis=1), workers)
        return Allocation(workers, wake=float(wake))

    def _climb(self, view: View, gain: Floats, kind: int, among: Bools, workers: Ints) -> None:
        """Give those among the jobs what is left of a kind; writes workers."""
        jobs = np.flatnonzero(among)
        room = int(view.capacity[kind] - workers[:, kind].sum())
        if len(jobs) and room > 0:
            there = gain[jobs] * view.speed[jobs, kind][:, None]
            workers[jobs, kind] = best_counts(there, replace(view, rows=view.rows[jobs]), room, self.power)


def homes(view: View) -> Ints:
    """The kind that each job has its workers on, [n]: where it runs, else where its part of the devices, those who
    are there already counted, is worth most; -1 where it fits on none."""
    fits = (view.speed > 0) & (view.capacity >= view.fewest[:, None])
    if len(view.capacity) == 1:
        return np.where(fits[:, 0], 0, -1)
    home = np.where(view.running, view.workers.argmax(axis=1), -1)
    there = np.bincount(home[view.running], minlength=len(view.capacity))
    for job in np.flatnonzero(~view.running & fits.any(axis=1)).tolist():
        worth = np.where(fits[job], view.speed[job] * view.capacity / (there + 1), 0.0)
        home[job] = int(worth.argmax())
        there[home[job]] += 1
    return home


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
