"""From the groups that run to those of a new plan: what stays, what goes, what comes, and what can come before
something goes. Pure: values in, values out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from placement.plan import Group, Plan, stage_bytes
from placement.problem import Problem
from serving.controller.foreign import is_foreign


@dataclass(frozen=True)
class Kept:
    """A group of the same devices and shape; `loads_first`: there is room for old and new models at once."""

    name: str
    spec: Group
    loads_first: bool


@dataclass(frozen=True)
class Fresh:
    """A group to start; `beside`: there is room for it while the old ones still run on its devices."""

    index: int
    """In the new plan."""
    spec: Group
    beside: bool


@dataclass(frozen=True)
class Change:
    kept: tuple[Kept, ...]
    gone: tuple[str, ...]
    fresh: tuple[Fresh, ...]

    def facts(self) -> dict[str, Any]:
        """For people."""
        return {
            "stopped": list(self.gone),
            "changed": [one.name for one in self.kept],
            "started": [list(one.spec.devices) for one in self.fresh],
        }


def plan_change(
    running: Mapping[str, Group], plan: Plan, problem: Problem, foreign: Collection[str] = frozenset()
) -> Change:
    """What leads from the running groups (by name) to the plan. Kept groups that need no change are left out.
    `foreign`: models that run on engines of others."""
    wanted = {_place(group, foreign): index for index, group in enumerate(plan.groups)}
    places = {name: _place(group, foreign) for name, group in running.items()}
    stays = {name: wanted[place] for name, place in places.items() if place in wanted}
    used = _device_bytes(running.values(), problem)
    kept = []
    for name, index in stays.items():
        new, old = plan.groups[index], running[name]
        if new != old or new.experts:  # a file of experts may say something else by now
            both = Counter(used)
            both.update(_device_bytes([_added(old, new)], problem))
            kept.append(Kept(name, new, _fits(both, new, problem)))
            used = both
    fresh = []
    for index, group in enumerate(plan.groups):
        if index not in stays.values():
            both = Counter(used)
            both.update(_device_bytes([group], problem))
            is_beside = _fits(both, group, problem)
            fresh.append(Fresh(index, group, is_beside))
            used = both if is_beside else used
    gone = tuple(name for name in running if name not in stays)
    return Change(tuple(kept), gone, tuple(fresh))


def _place(group: Group, foreign: Collection[str]) -> tuple[object, ...]:
    """What cannot change while a group runs."""
    return group.devices, group.tp, group.pp, group.parked, is_foreign(group, foreign)


def _added(old: Group, new: Group) -> Group:
    """The new models of a group, as a group."""
    models = tuple(
        name for name in new.models if name not in old.models or new.kv_bytes.get(name) != old.kv_bytes.get(name)
    )
    kv_bytes = {name: size for name, size in new.kv_bytes.items() if name in models}
    return Group(new.devices, new.tp, new.pp, models, kv_bytes)


def _device_bytes(groups: Iterable[Group], problem: Problem) -> Counter[str]:
    """What groups hold on each device."""
    held: Counter[str] = Counter()
    for group in groups:
        for stage, need in enumerate(stage_bytes(group, problem)):
            for device in group.stage_devices(stage):
                held[device] += need
    return held


def _fits(held: Counter[str], group: Group, problem: Problem) -> bool:
    cluster = problem.cluster
    return all(held[name] <= cluster.devices[cluster.device_index[name]].memory for name in group.devices)
