"""Lina's rule, for one batch: experts stay at home, in order; spare slots get replicas in proportion to the estimate.

Meant to be asked for every batch with the estimate of its next layer (see moe.popularity).
"""

from __future__ import annotations

from dataclasses import dataclass

from moe.expert_placement import ExpertPlacement
from moe.replication.base import Task
from moe.replication.build_kernel import make_yard
from moe.replication.counting import counted, falling
from moe.replication.packing_kernel import fill_spare
from moe.replication.static import Static

WEBSTER = -0.5
"""The discount that rounds shares to the nearest whole number of replicas."""


@dataclass(frozen=True)
class Lina:
    def place(self, task: Task) -> ExpertPlacement:
        pool, (_, experts) = task.pool, task.load.shape
        home = Static().place(task)
        replicas = counted(task.load, pool.total, most=pool.devices, discount=WEBSTER)
        expert = home.expert.copy()
        yard = make_yard(experts, pool.devices)
        fill_spare(task.load, falling(task.load), replicas, pool.start, pool.speed, yard, expert)
        return ExpertPlacement(expert, pool.start, experts)
