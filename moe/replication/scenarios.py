"""What a load may become: recent batches where they are known, else log-normal draws around what is expected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moe.arrays import Floats
from moe.expert_placement import ExpertPlacement
from moe.replication.base import Task
from moe.split import Splitter, balancedness

MOST_BATCHES = 32
TINY = 1e-9
"""Below any balancedness but that of loads which are hardly numbers."""
HALF_LIFE = 16.0
"""Batches after which a recent batch counts half as much as the last one."""


@dataclass(frozen=True)
class Scenarios:
    load: Floats
    """[layers, scenarios, experts], the expected load first."""
    weight: Floats
    """[scenarios], of sum 1."""

    @classmethod
    def of(cls, task: Task, drift: float, draws: int, expected: float, chance: np.random.Generator) -> Scenarios:
        """`drift` is the sigma of each draw's factors, `expected` the weight of the expected load itself."""
        if task.history is not None and len(task.history):
            last = len(task.history) - 1
            chosen = np.linspace(0, last, min(last + 1, MOST_BATCHES)).astype(np.int64)
            drawn, weight = task.history[chosen].transpose(1, 0, 2), 0.5 ** ((last - chosen) / HALF_LIFE)
        else:
            drawn = task.load[:, None, :] * np.exp(drift * chance.standard_normal((draws, task.load.shape[1])))
            weight = np.ones(draws)
        weight = np.append(expected, (1 - expected) * weight / weight.sum())
        load = np.concatenate([task.load[:, None, :], drawn], axis=1)
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
