"""What a load may become: recent batches as far as they are known, and log-normal draws around what is expected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moe.arrays import Floats
from moe.expert_placement import ExpertPlacement
from moe.replication.base import Task
from moe.split import Splitter, balancedness

MOST_BATCHES = 32
FEW_BATCHES = 8
"""Fewer are filled up to so many with draws: exchanges would fit them alone."""
TINY = 1e-9
"""Below any balancedness but that of loads which are hardly numbers."""
HALF_LIFE = 16.0
"""Batches after which a recent batch counts half as much as the last one."""
JITTER = 0.1
"""Sigma of log-normal factors on recent batches: none comes again as it was."""


@dataclass(frozen=True)
class Scenarios:
    load: Floats
    """[layers, scenarios, experts], the expected load first."""
    weight: Floats
    """[scenarios], of sum 1."""

    @classmethod
    def of(
        cls, task: Task, drift: float, draws: int, expected: float, chance: np.random.Generator, jittered: bool = False
    ) -> Scenarios:
        """`drift` is the sigma of each draw's factors, `expected` the weight of the expected load itself. With no
        recent batches there are so many draws; with a few, some. Who judges what was searched with the same batches
        sees them `jittered`."""
        batches, weight = _recent(task)
        most = max(0, FEW_BATCHES - len(batches)) if len(batches) else draws
        factors = np.exp(drift * chance.standard_normal((most, task.load.shape[1])))
        drawn = [batches, task.load * factors[:, None, :]]
        if jittered:
            drawn[0] = batches * np.exp(JITTER * chance.standard_normal(batches.shape))
        weight = np.append(weight, np.ones(most))
        weight = np.append(expected, (1 - expected) * weight / weight.sum())
        load = np.concatenate([task.load[None], *drawn]).transpose(1, 0, 2)
        return cls(np.ascontiguousarray(load), weight / weight.sum())

    def expected(self, placement: ExpertPlacement, speed: Floats) -> Floats:
        """[layers]: the mean over the scenarios of greatest over mean device load, each split as is best for it."""
        splitter = Splitter(placement, speed)
        total = np.zeros(len(self.load))
        for number, weight in enumerate(self.weight):
            load = np.ascontiguousarray(self.load[:, number])
            balance = balancedness(load, splitter.levels(load), speed)
            total += weight / np.maximum(balance, TINY)
        return total


def _recent(task: Task) -> tuple[Floats, Floats]:
    """Batches [batches, layers, experts], and what each of them counts."""
    if task.history is None or not len(task.history):
        return np.empty((0, *task.load.shape)), np.empty(0)
    last = len(task.history) - 1
    chosen = np.linspace(0, last, min(last + 1, MOST_BATCHES)).astype(np.int64)
    return task.history[chosen], 0.5 ** ((last - chosen) / HALF_LIFE)
