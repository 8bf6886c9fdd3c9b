"""Lyra's two phases: base demands, shortest job first; then what is left over to flexible demands, by a knapsack.

Nobody is preempted for another job: flexible workers go back when a base needs them. The knapsack has a group for each
elastic job, an item for each number of extra workers, worth the drop of its running time. Where one more worker is
never worth more than the one before (linear and Amdahl scaling), taking the best next worker solves it exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Floats, Ints
from training.growing import bases, grown
from training.knapsack import best_choice, is_concave
from training.view import Allocation, Information, View


@dataclass(frozen=True)
class Lyra:
    name: ClassVar[str] = "lyra"
    information: Information = "predicted"
    round_s: float = 0.0
    elastic: bool = True
    """Whether flexible demands are met at all."""
    moves: bool = True
    """Whether jobs that run on slow devices move to faster ones; the published rule leaves them where they are."""

    def allocate(self, view: View) -> Allocation:
        if not self.elastic:
            return Allocation(bases(view, view.estimate_s, False, view.gpus, self._left(view)))
        workers = bases(view, view.estimate_s, preemptive=False, left=self._left(view))
        if (view.curve_columns[1] < 0).all():
            return Allocation(grown(view, workers, view.remaining_s))
        return Allocation(by_knapsack(view, workers))

    def _left(self, view: View) -> Floats | None:
        return view.remaining_s if self.moves else None


def by_knapsack(view: View, workers: Ints) -> Ints:
    """Flexible workers on the kind each job runs on, exact for any scaling curve."""
    workers = workers.copy()
    total = workers.sum(axis=1)
    kind = workers.argmax(axis=1)
    for number, free in enumerate((view.capacity - workers.sum(axis=0)).tolist()):
        jobs = np.flatnonzero((total > 0) & (total < view.most) & (kind == number))
        if not free or not len(jobs):
            continue
        values = [_drops(view, int(job), int(total[job]), free) for job in jobs]
        if all(map(is_concave, values)):
            workers[:, number] = grown(view, workers, view.remaining_s)[:, number]
        else:
            workers[jobs, number] += best_choice(values, free).weights
    return workers


def _drops(view: View, job: int, base: int, free: int) -> Floats:
    """How much sooner the job ends with 1, 2, .. extra workers."""
    counts = np.arange(base, min(int(view.most[job]), base + free) + 1)
    times = view.remaining_s[job] / view.speedup_of(job, counts)
    drops: Floats = times[0] - times[1:]
    return np.maximum(drops, 0.0)
