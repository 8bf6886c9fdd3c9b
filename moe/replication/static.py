"""Experts in order, one replica each: what a system without replication does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moe.arrays import Ints
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.replication.base import Task


@dataclass(frozen=True)
class Static:
    def place(self, task: Task) -> ExpertPlacement:
        layers, experts = task.load.shape
        expert = np.full((layers, task.pool.total), -1, np.int64)
        first = 0
        for begin, count in zip(task.pool.start[:-1], _quotas(task.pool, experts), strict=True):
            expert[:, begin : begin + count] = np.arange(first, first + count)
            first += int(count)
        return ExpertPlacement(expert, task.pool.start, experts)


def _quotas(pool: Pool, experts: int) -> Ints:
    """Experts of each device: as even as the slots allow, the surplus on the first."""
    quotas = np.zeros(pool.devices, np.int64)
    left = experts
    while left > 0:
        open_devices = np.flatnonzero(quotas < pool.slots)[:left]
        step = max(1, min(left // len(open_devices), int((pool.slots - quotas)[open_devices].min())))
        quotas[open_devices] += step
        left -= step * len(open_devices)
    return quotas
