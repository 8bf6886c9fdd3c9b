"""What a new plan would do to the running groups, for people: the dry run of a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placement.plan import Group, Plan
from placement.problem import Problem
from serving.controller.change import plan_change


def plan_steps(running: Mapping[str, Group], plan: Plan, problem: Problem) -> list[dict[str, Any]]:
    """Group by group: which stop, change and start, and with what."""
    change = plan_change(running, plan, problem)
    steps = [_step("stop", name, running[name], drops=running[name].models) for name in change.gone]
    for kept in change.kept:
        before, after = running[kept.name], kept.spec
        adds = [model for model in after.models if model not in before.models]
        drops = [model for model in before.models if model not in after.models]
        steps.append(_step("change", kept.name, after, adds, drops, _caches(before, after)))
    return steps + [_step("start", "", one.spec, one.spec.models) for one in change.fresh]


def _caches(before: Group, after: Group) -> list[str]:
    """Models that stay, with another cache."""
    return [
        f"cache of {model} {before.kv_bytes.get(model, 0) / 2**20:.4g} MiB, then {size / 2**20:.4g} MiB"
        for model, size in after.kv_bytes.items()
        if model in before.models and before.kv_bytes.get(model, 0) != size
    ]


def _step(
    what: str,
    name: str,
    group: Group,
    adds: Sequence[str] = (),
    drops: Sequence[str] = (),
    also: Sequence[str] = (),
) -> dict[str, Any]:
    shape = f"tp{group.tp} x pp{group.pp}"
    facts: dict[str, Any] = {"what": what, "group": name, "devices": group.devices, "shape": shape}
    return facts | {"adds": adds, "drops": drops, "also": also}
