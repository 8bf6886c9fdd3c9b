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
        where, more = f"plan: groups[{index}]", dict.fromkeys(group.devices, 0)
        for name in group.experts:
            if name not in group.models:
                raise InputError(f"{where}: experts of {name!r}, which is not among its models")
            model = models[name]
            try:
                places = read_places(group, name, model.sizes)
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
            assert places is not None
            for device, size in _beyond_slices(group, places, model).items():
                more[device] += size
        if group.experts:
            _check_memory(group, more, problem, where)


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


def _beyond_slices(group: Group, places: Places, model: ExpertModel) -> dict[str, int]:
    """Bytes of whole experts on each device, less what slices of all experts would take there."""
    sizes, more = model.sizes, dict[str, int]()
    cuts = stage_boundaries(sizes, group.tp, group.pp)
    number = np.cumsum(sizes.has_experts) - 1
    for stage, (first, last) in enumerate(pairwise(cuts)):
        layers = [int(number[layer]) for layer in range(first, last) if sizes.has_experts[layer]]
        for rank, device in enumerate(group.stage_devices(stage)):
            held = sum(len(places[layer][rank]) for layer in layers)
            more[device] = held * model.expert_bytes - len(layers) * sizes.experts * model.expert_bytes // group.tp
    return more


def _check_memory(group: Group, more: Mapping[str, int], problem: Problem, where: str) -> None:
    cluster = problem.cluster
    for stage, need in enumerate(stage_bytes(group, problem)):
        for name in group.stage_devices(stage):
            have = cluster.devices[cluster.device_index[name]].memory
            if need + more[name] > have:
                raise InputError(
                    f"{where}: device {name!r} would hold {need + more[name]} bytes of its {int(have)}, "
                    "with experts as they are placed"
                )
