"""Which groups of a plan are led for engines of others, and which plans cannot be."""

from __future__ import annotations

from collections.abc import Collection

from placement.errors import InputError
from placement.plan import Group, Plan, replica_profile
from placement.problem import Problem


def is_foreign(group: Group, foreign: Collection[str]) -> bool:
    """Whether servers of others run its models; `foreign`: names of models that have such engines."""
    return any(model in foreign for model in group.models + group.parked)


def check_foreign(plan: Plan, foreign: Collection[str]) -> None:
    """A group's models run on our engine or on others'. Of others' one is awake at a time, since two engines that know
    nothing of each other keep no stage clock; and one process leads the group, on one node."""
    for index, group in enumerate(plan.groups):
        theirs = [model for model in group.models + group.parked if model in foreign]
        ours = [model for model in group.models + group.parked if model not in foreign]
        if theirs and ours:
            raise InputError(
                f"plan: groups[{index}]: {ours[0]!r} runs on our engine and {theirs[0]!r} on another's; a group has "
                "one of the two"
            )
        if theirs and len(group.models) > 1:
            raise InputError(
                f"plan: groups[{index}]: {group.models[0]!r} and {group.models[1]!r} run on engines of others; one is "
                "awake at a time, so name the rest as parked"
            )
        nodes = sorted({device.rpartition("/")[0] for device in group.devices})
        if theirs and len(nodes) > 1:
            raise InputError(
                f"plan: groups[{index}]: {theirs[0]!r} runs on an engine of others, which is started on one node; the "
                f"group has devices of {nodes[0]!r} and {nodes[1]!r}"
            )


def measured_wake_s(group: Group, model: str, problem: Problem) -> float | None:
    """How long the model takes to be awake on the group, by its profile."""
    entry = replica_profile(group, model, problem)
    return None if entry is None else entry.wake
