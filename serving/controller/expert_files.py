"""The expert placements that a plan names: read from their files, checked against the model and its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from moe.expert_placement import read_placement
from moe.popularity import FILE_NAME, Marginal, load_profile
from placement.costs.transformer import TransformerConfig
from placement.errors import InputError
from placement.plan import Group, Plan, stage_bytes
from placement.problem import Problem
from serving.models import ModelConfig, make_shard, stage_boundaries

Places = list[list[list[int]]]
"""[layer with experts][device of a stage][expert ids], as ModelSpec.experts."""
_VALUE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}


@dataclass(frozen=True)
class ExpertModel:
    """What deciding about a model's experts needs to know of it."""

    config: ModelConfig
    precision: str
    directory: Path

    def profile(self) -> Marginal | None:
        """How often experts were chosen when `penstock moe profile` looked; None where it has not."""
        path = self.directory / FILE_NAME
        if not path.is_file():
            return None
        found = load_profile(path).marginal
        if found.choices.shape != (self.layers, self.sizes.experts):
            raise InputError(f"{path}: of a model with other experts than {self.directory}")
        return found

    @property
    def sizes(self) -> TransformerConfig:
        return self.config.sizes

    @property
    def layers(self) -> int:
        """Those with experts."""
        return int(np.count_nonzero(self.sizes.has_experts))

    @property
    def expert_bytes(self) -> int:
        return self.sizes.ffn_parameters(self.sizes.expert_ffn) * _VALUE_BYTES[self.precision]


def read_places(group: Group, model: str, sizes: TransformerConfig) -> Places | None:
    """Where the plan puts the experts of a model; None where it does not say, and each device has a slice of each."""
    if model not in group.experts:
        return None
    path = Path(group.experts[model])
    if not path.is_absolute():
        raise InputError(f"experts of {model!r}: {path}: give the whole path of a file where the server runs")
    placement = read_placement(path)
    try:
        make_shard(sizes, group.tp, group.pp, 0, placement)
    except InputError as error:
        raise InputError(f"experts of {model!r}: {path}: {error}") from error
    return placement.lists()


def check_experts(plan: Plan, problem: Problem, models: Mapping[str, ExpertModel]) -> None:
    """Refuse a plan whose placements cannot be read, are for other models, or exceed a device's memory."""
    for index, group in enumerate(plan.groups):
        where, placed = f"plan: groups[{index}]", dict[str, Places]()
        for name in group.experts:
            if name not in group.models:
                raise InputError(f"{where}: experts of {name!r}, which is not among its models")
            try:
                places = read_places(group, name, models[name].sizes)
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
            assert places is not None
            placed[name] = places
        if placed:
            Room(group, problem, models).check(placed, where)


@dataclass(frozen=True)
class Room:
    """Of a group's devices for experts. `placed` in its calls are all that are placed there, by model."""

    group: Group
    problem: Problem
    models: Mapping[str, ExpertModel]

    def check(self, placed: Mapping[str, Places], where: str) -> None:
        """Refuse what exceeds the memory of a device."""
        cluster = self.problem.cluster
        for name, left in self._left(placed).items():
            have = int(cluster.devices[cluster.device_index[name]].memory)
            if left < 0:
                raise InputError(
                    f"{where}: device {name!r} would hold {have - left} bytes of its {have}, "
                    "with experts as they are placed"
                )

    def slots(self, model: str, planned: Places, placed: Mapping[str, Places]) -> list[int]:
        """[device of a stage]: experts that it may hold of each layer. As many as the plan has put there in any one, if
        there is memory for so many in all; but no fewer than it holds in one already."""
        left, now, size = self._left(placed), placed[model], self.models[model].expert_bytes
        slots = []
        for rank in range(self.group.tp):
            most = max(len(layer[rank]) for layer in planned)
            for stage, layers in enumerate(_stage_layers(self.group, self.models[model].sizes)):
                held = sum(len(now[layer][rank]) for layer in layers)
                spare = left[self.group.stage_devices(stage)[rank]] // size
                most = min(most, (held + spare) // len(layers)) if layers else most
            slots.append(max(most, *(len(layer[rank]) for layer in now)))
        return slots

    def _left(self, placed: Mapping[str, Places]) -> dict[str, int]:
        """Bytes of each device that nothing is planned for; slices of experts, as profiled, give way to whole ones."""
        cluster, group, left = self.problem.cluster, self.group, dict[str, int]()
        for stage, need in enumerate(stage_bytes(group, self.problem)):
            for rank, device in enumerate(group.stage_devices(stage)):
                left[device] = int(cluster.devices[cluster.device_index[device]].memory) - need
                for name, places in placed.items():
                    model = self.models[name]
                    layers = _stage_layers(group, model.sizes)[stage]
                    slices = len(layers) * model.sizes.experts * model.expert_bytes // group.tp
                    left[device] += slices - model.expert_bytes * sum(len(places[layer][rank]) for layer in layers)
        return left


def with_whole_paths(plan: Plan, folder: Path) -> Plan:
    """Placements named relative to a folder, by their whole paths."""
    return msgspec.structs.replace(
        plan,
        groups=tuple(
            msgspec.structs.replace(
                group, experts={model: str(folder.resolve() / path) for model, path in group.experts.items()}
            )
            for group in plan.groups
        ),
    )


def with_experts_of(old: Plan, new: Plan) -> Plan:
    """A plan that says nothing of experts, with the old plan's word on groups that it keeps."""
    kept = {(group.devices, group.tp, group.pp): group.experts for group in old.groups}

    def fill(group: Group) -> Group:
        known = kept.get((group.devices, group.tp, group.pp), {})
        experts = {model: path for model, path in known.items() if model in group.models}
        return msgspec.structs.replace(group, experts=experts | group.experts)

    return msgspec.structs.replace(new, groups=tuple(map(fill, new.groups)))


def _stage_layers(group: Group, sizes: TransformerConfig) -> list[list[int]]:
    """The layers of each stage that have experts, numbered among those."""
    number = np.cumsum(sizes.has_experts) - 1
    cuts = stage_boundaries(sizes, group.tp, group.pp)
    return [
        [int(number[layer]) for layer in range(first, last) if sizes.has_experts[layer]]
        for first, last in pairwise(cuts)
    ]
