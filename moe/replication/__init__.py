"""How many replicas each expert has, and where: policies behind one small interface."""

from __future__ import annotations

from moe.expert_placement import ExpertPlacement
from moe.replication.base import Policy, Task
from moe.replication.eplb import Eplb
from moe.replication.hierarchy import place_by_node
from moe.replication.lina import Lina
from moe.replication.penstock import Penstock
from moe.replication.scenarios import Scenarios
from moe.replication.static import Static
from placement.errors import InputError

POLICIES: dict[str, type[Policy]] = {"eplb": Eplb, "lina": Lina, "penstock": Penstock, "static": Static}


def policy_named(name: str) -> Policy:
    if name not in POLICIES:
        raise InputError(f"--policy {name!r}: no such policy; give one of {', '.join(POLICIES)}")
    return POLICIES[name]()


def place(policy: Policy, task: Task) -> ExpertPlacement:
    """By the policy; node by node where the task has groups."""
    if task.groups is None:
        return policy.place(task)
    placed = place_by_node(policy, task, task.groups)
    return policy.worth_moving(task, placed) if isinstance(policy, Penstock) else placed


__all__ = ["POLICIES", "Eplb", "Lina", "Penstock", "Policy", "Scenarios", "Static", "Task", "place", "policy_named"]
