"""A plan: which groups of devices run which models with which shape. A value: changing one returns a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from placement.errors import InputError
from placement.files import read_document, write_json
from placement.problem import Problem
from placement.profile import Shape, ShapeProfile


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Devices in stage order (the tp devices of a stage beside each other) and the models they run together."""

    devices: tuple[str, ...]
    tp: Annotated[int, Meta(ge=1)]
    pp: Annotated[int, Meta(ge=1)]
    models: tuple[str, ...] = ()
    kv_bytes: dict[str, int] = {}
    """Cache memory per device and stage for each generating model, of those parked too."""
    experts: dict[str, str] = {}
    parked: tuple[str, ...] = ()
    """Models whose weights wait in host memory; one of them at a time is awake on the group."""

    def __post_init__(self) -> None:
        if len(self.devices) != self.tp * self.pp:
            raise ValueError(f"{len(self.devices)} devices for shape {self.shape}; {self.tp * self.pp} are needed")
        for what, names in (("device", self.devices), ("model", self.models + self.parked)):
            if len(set(names)) < len(names):
                raise ValueError(f"the same {what} stands twice in one group: {sorted(names)}")

    @property
    def shape(self) -> Shape:
        return Shape(self.tp, self.pp)

    def stage_devices(self, stage: int) -> tuple[str, ...]:
        return self.devices[stage * self.tp : (stage + 1) * self.tp]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Groups with their replicas; `planner` tells how the plan was found."""

    groups: tuple[Group, ...]
    ladder: tuple[tuple[int, ...], ...] = ()
    """Nested sets of groups that can be drained, in order, with every model still covered."""
    planner: dict[str, Any] = {}

    def replicas(self, model: str) -> list[int]:
        """Indices of the groups that hold the model, awake or parked."""
        return [index for index, group in enumerate(self.groups) if model in group.models + group.parked]


def read_plan(path: Path, problem: Problem) -> Plan:
    """Read a plan and check it against the problem."""
    plan = read_document(path, Plan)
    check_plan(plan, problem, str(path))
    return plan


def write_plan(path: Path, plan: Plan) -> None:
    write_json(path, plan)


def group_span(group: Group, problem: Problem) -> str:
    """ "node" when all devices of the group stand in one node, else "cluster"."""
    cluster = problem.cluster
    nodes = {cluster.devices[cluster.device_index[name]].node for name in group.devices}
    return "node" if len(nodes) == 1 else "cluster"


def group_kind(group: Group, problem: Problem) -> str:
    cluster = problem.cluster
    return cluster.devices[cluster.device_index[group.devices[0]]].kind


def replica_profile(group: Group, model: str, problem: Problem) -> ShapeProfile | None:
    """What the model costs on this group; None where its profile has no such shape."""
    profile = next(entry.profile for entry in problem.models if entry.name == model)
    return profile.find(group.shape, group_kind(group, problem), group_span(group, problem))


def takes_turns(group: Group, problem: Problem) -> frozenset[str]:
    """Models of the group of which one at a time is awake: those parked, and one that is alone with them."""
    alone = {model.name for model in problem.models if model.alone}
    names = group.parked + tuple(name for name in group.models if name in alone)
    return frozenset(names if group.parked else ())


def check_plan(plan: Plan, problem: Problem, where: str) -> None:
    """Refuse a plan that names what is not there, uses a device twice, or exceeds a device's memory."""
    names = {model.name: model for model in problem.models}
    used: dict[str, int] = {}
    for index, group in enumerate(plan.groups):
        place = f"{where}: groups[{index}]"
        for device in group.devices:
            if device not in problem.cluster.device_index:
                raise InputError(f"{place}: no device {device!r} in the cluster")
            if device in used:
                raise InputError(f"{place}: device {device!r} is in groups[{used[device]}] already")
            used[device] = index
        for model in group.models + group.parked:
            if model not in names:
                raise InputError(f"{place}: no model {model!r} in the problem")
        if len({problem.cluster.devices[problem.cluster.device_index[d]].kind for d in group.devices}) > 1:
            raise InputError(f"{place}: devices of several kinds in one group; use one kind")
        for model in group.kv_bytes:
            if model not in group.models + group.parked or not names[model].generates:
                raise InputError(f"{place}: kv_bytes for {model!r}, which does not generate on this group")
        alone = next((model for model in group.models if names[model].alone), None)
        if alone is not None and len(group.models) > 1:
            raise InputError(f"{place}: {alone!r} shares a group with no other model that is awake; park the others")
        for model in group.models + group.parked:
            if names[model].generates and group.kv_bytes.get(model, 0) <= 0:
                raise InputError(f"{place}: no kv_bytes for {model!r}, which generates")
        _check_memory(group, problem, place)
    for step in plan.ladder:
        if any(not 0 <= index < len(plan.groups) for index in step):
            raise InputError(f"{where}: ladder names a group that is not there: {list(step)}")
    _check_host_memory(plan, problem, where)


def stage_bytes(group: Group, problem: Problem, place: str = "plan") -> list[int]:
    """What each device of each stage must hold: weights of all models, the largest of those parked, and caches. Where a
    model is alone, it takes turns with those parked."""
    profiles: dict[str, ShapeProfile] = {}
    for model in group.models + group.parked:
        entry = replica_profile(group, model, problem)
        if entry is None:
            kind, span = group_kind(group, problem), group_span(group, problem)
            raise InputError(f"{place}: {model!r} has no profile for shape {group.shape} (kind {kind}, span {span})")
        profiles[model] = entry
    needs = []
    turns = takes_turns(group, problem)
    for stage in range(group.pp):
        held = {model: int(one.stage_memory[stage]) + group.kv_bytes.get(model, 0) for model, one in profiles.items()}
        bay = max((held[model] for model in turns), default=0)
        needs.append(bay + sum(held[model] for model in group.models if model not in turns))
    return needs


def _check_memory(group: Group, problem: Problem, place: str) -> None:
    cluster = problem.cluster
    for stage, need in enumerate(stage_bytes(group, problem, place)):
        for name in group.stage_devices(stage):
            have = cluster.devices[cluster.device_index[name]].memory
            if need > have:
                raise InputError(f"{place}: device {name!r} would hold {need} bytes of its {have}")


def _check_host_memory(plan: Plan, problem: Problem, where: str) -> None:
    cluster = problem.cluster
    need = [0] * len(cluster.nodes)
    for group in plan.groups:
        for model in takes_turns(group, problem):  # each of them sleeps at times
            entry = replica_profile(group, model, problem)
            assert entry is not None
            for stage, size in enumerate(entry.stage_memory):
                for name in group.stage_devices(stage):
                    need[cluster.devices[cluster.device_index[name]].node] += int(size)
    for node, bytes_needed in zip(cluster.nodes, need, strict=True):
        if bytes_needed > node.host_memory:
            raise InputError(
                f"{where}: models parked on node {node.name!r} need {bytes_needed} bytes of host memory; "
                f"it has {int(node.host_memory)}"
            )
