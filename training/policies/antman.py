"""AntMan: opportunistic jobs run in what guaranteed jobs leave idle on the same GPUs.

Jobs with a priority above 0 are guaranteed: first come, first served, most of each device theirs. The others get the
rest of any device, idle ones first, and never slow a guaranteed job; they are not preempted for it either, only
squeezed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Bools, Ints
from training.kernels import first_fit, keep_fastest
from training.view import Allocation, Information, View

GUARANTEED, OPPORTUNISTIC = 0.8, 0.2
"""Shares of a device."""


@dataclass(frozen=True)
class Antman:
    name: ClassVar[str] = "antman"
    strict: bool = False
    information: Information = "none"
    round_s: float = 0.0

    def allocate(self, view: View) -> Allocation:
        guaranteed = view.priority > 0
        workers = in_arrival_order(view, guaranteed, self.strict) + in_arrival_order(view, ~guaranteed, self.strict)
        share = np.where(guaranteed, GUARANTEED, OPPORTUNISTIC)
        return Allocation(workers, share, emptiest=True)


def in_arrival_order(view: View, jobs: Bools, strict: bool) -> Ints:
    """Every device can hold one of each sort: the two queues do not see each other."""
    workers = np.zeros_like(view.workers)
    free = view.capacity.copy()
    keep_fastest(view.workers, view.running & jobs, view.total, view.speed, free, workers)
    order = np.flatnonzero(jobs & ~view.running)
    first_fit(order, view.gpus, view.speed, view.mixed, view.workers, free, strict, workers)
    return workers
