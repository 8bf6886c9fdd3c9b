"""Policies that are an order: jobs get what they ask for, one after the other, while it fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Bools, Floats, Ints
from training.kernels import first_fit, keep_fastest
from training.view import Allocation, Information, View


@dataclass(frozen=True)
class Ordering:
    """`key` is the rule: lower goes first, ties in order of arrival. `strict`: the first job that does not fit blocks
    those behind it; else they fill in (backfill)."""

    strict: bool = False
    information: Information = "none"
    round_s: float = 0.0
    name: ClassVar[str]
    preemptive: ClassVar[bool] = True

    def key(self, view: View) -> Floats:
        raise NotImplementedError

    def wake(self, view: View, workers: Ints) -> float:
        """When the order may change by itself."""
        return np.inf

    def allocate(self, view: View) -> Allocation:
        workers = in_order(view, self.key(view), self.strict, self.preemptive)
        return Allocation(workers, wake=self.wake(view, workers))


def in_order(
    view: View, key: Floats, strict: bool = False, preemptive: bool = True, migrates: bool | Bools = False
) -> Ints:
    """Workers [n, kinds] by first fit in the order of `key`; without preemption, whoever runs keeps what it has. Who
    `migrates` (all, or [n]) takes its fastest kind with room, else the one it runs on."""
    workers = np.zeros((len(view), len(view.capacity)), np.int64)
    free = view.capacity.copy()
    if preemptive:
        order = np.argsort(key, kind="stable")
    else:
        keep_fastest(view.workers, view.running, view.total, view.speed, free, workers)
        waiting = np.flatnonzero(~view.running)
        order = waiting[np.argsort(key[waiting], kind="stable")]
    held = np.where(np.broadcast_to(migrates, len(view))[:, None], 0, view.workers)
    first_fit(order, view.gpus, view.speed, view.mixed, held, free, strict, workers)
    return workers
