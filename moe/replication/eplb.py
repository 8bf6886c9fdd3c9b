"""DeepSeek's EPLB, from its public description: the heaviest expert is replicated again and again, then the replicas
are packed by falling load. It splits tokens evenly over replicas, and may put two of one expert on a device."""

from __future__ import annotations

from dataclasses import dataclass

from moe.expert_placement import ExpertPlacement
from moe.replication.base import Task
from moe.replication.counting import counted, packed


@dataclass(frozen=True)
class Eplb:
    def place(self, task: Task) -> ExpertPlacement:
        replicas = counted(task.load, task.pool.total, most=task.pool.total)
        return packed(task.load, replicas, task.pool, distinct=False)
