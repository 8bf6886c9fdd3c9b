"""A planning problem: cluster, models with their profiles and goals, and the traffic to plan for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from numpy.typing import NDArray

from loadgen.spec import traffic_from_spec
from placement.cluster import Cluster
from placement.errors import InputError
from placement.files import convert, read_document
from placement.profile import Profile
from placement.units import Seconds, Share, parse_seconds
from placement.workload import Workload, check_workload, read_workload

MAX_MODELS = 100_000
MAX_SLO_S = 1e6
MAX_WEIGHT = 1e6

Objective = Literal["target", "overall"]


@dataclass(frozen=True)
class Slo:
    """A latency goal in seconds: end to end, or time to first token and time per output token, both to be held."""

    end_to_end: float = math.inf
    ttft: float = math.inf
    tpot: float = math.inf

    @property
    def first_token(self) -> float:
        """The deadline that admission can test at arrival."""
        return min(self.end_to_end, self.ttft)

    def scaled(self, factor: float) -> Slo:
        return Slo(self.end_to_end * factor, self.ttft * factor, self.tpot * factor)


@dataclass(frozen=True)
class Model:
    """One model to be served: its costs, its goal, the attainment it is owed, and its worth against others."""

    name: str
    profile: Profile
    slo: Slo
    target: float = 0.99
    weight: float = 1.0
    alone: bool = False
    """Whether its groups hold no other model beside it, however much room there is."""

    @cached_property
    def generates(self) -> bool:
        """Whether requests are answered token by token (else in one pass)."""
        return all(entry.generation is not None and not entry.stage_latency for entry in self.profile.shapes) or (
            not math.isfinite(self.slo.end_to_end)
        )


@dataclass(frozen=True)
class Problem:
    """What the planner reads. `overhead` is seconds a request spends outside the stages: they count for its deadline
    and occupy nothing. `objective` judges plans by the models' shortfall below target first, or overall alone."""

    cluster: Cluster
    models: tuple[Model, ...]
    workload: Workload
    overhead: float = 0.0
    objective: Objective = "target"

    def with_devices(self, count: int) -> Problem:
        """The problem on the first `count` devices."""
        return replace(self, cluster=self.cluster.first(count))

    def with_slo_scale(self, factor: float) -> Problem:
        """Every goal made `factor` times as long."""
        models = tuple(replace(model, slo=model.slo.scaled(factor)) for model in self.models)
        return replace(self, models=models)


class _ModelEntry(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1)]
    slo: float | str | dict[str, float | str]
    profile: str | None = None
    target: Share = Share(0.99)
    weight: float = 1.0
    alone: bool = False


class _ProblemFile(msgspec.Struct, forbid_unknown_fields=True):
    cluster: Cluster
    models: Annotated[list[_ModelEntry], Meta(min_length=1, max_length=MAX_MODELS)]
    profiles: str
    workload: str | dict[str, Any]
    overhead: Seconds = Seconds(0)
    objective: Objective = "target"


def read_problem(path: Path, workload: Path | None = None) -> Problem:
    """Read a problem with the files it names; `workload` stands in for the one it names."""
    entry = read_document(path, _ProblemFile)
    profiles_path = path.parent / entry.profiles
    profiles = {
        name: convert(profile, Profile, f"{profiles_path}: {name}")
        for name, profile in read_document(profiles_path, dict[str, Any]).items()
    }
    models = tuple(_model(model, index, profiles, path, profiles_path) for index, model in enumerate(entry.models))
    names = [model.name for model in models]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path}: models: two are named {twice!r}; names must differ")
    arrivals = _workload(entry, names, path) if workload is None else read_workload(workload, len(models))
    if arrivals.prompt_tokens is None and (chat := next((m for m in models if m.generates), None)):
        raise InputError(f"{path}: workload: no prompt_tokens and output_tokens, but {chat.name!r} generates")
    return Problem(entry.cluster, models, arrivals, float(entry.overhead), entry.objective)


def _model(entry: _ModelEntry, index: int, profiles: dict[str, Profile], path: Path, profiles_path: Path) -> Model:
    where = f"{path}: models[{index}] ({entry.name})"
    profile = profiles.get(entry.profile or entry.name)
    if profile is None:
        known = ", ".join(sorted(profiles)[:8])
        raise InputError(f"{where}: no profile {entry.profile or entry.name!r} in {profiles_path}; it has {known}")
    if not 0 < entry.target <= 1:
        raise InputError(f"{where}: target is {entry.target:g}; it must be above 0 and at most 1")
    if not 1 / MAX_WEIGHT <= entry.weight <= MAX_WEIGHT:
        raise InputError(
            f"{where}: weight is {entry.weight:g}; it must be between {1 / MAX_WEIGHT:g} and {MAX_WEIGHT:g}"
        )
    if not entry.name.isprintable():
        raise InputError(f"{path}: models[{index}]: name {entry.name!r} has characters that cannot be printed")
    model = Model(entry.name, profile, _slo(entry.slo, where), float(entry.target), entry.weight, entry.alone)
    for shape in profile.shapes:
        if model.generates and shape.generation is None:
            raise InputError(
                f"{where}: generates (slo {{ttft, tpot}}), but shape {shape.shape} has no generation costs"
            )
        if not model.generates and not shape.stage_latency:
            raise InputError(f"{where}: answers in one pass, but shape {shape.shape} has no stage_latency")
    return model


def _slo(value: float | str | dict[str, float | str], where: str) -> Slo:
    parts = value if isinstance(value, dict) else {"end_to_end": value}
    if isinstance(value, dict) and (not value or set(value) - {"ttft", "tpot"}):
        raise InputError(f"{where}: slo has {sorted(value)}; expected seconds, or {{ttft, tpot}}")
    try:
        seconds = {name: float(parse_seconds(part)) for name, part in parts.items()}
    except ValueError as error:
        raise InputError(f"{where}: slo: {error}") from error
    if not all(0 < part <= MAX_SLO_S for part in seconds.values()):
        raise InputError(f"{where}: slo is {value}; it must be above 0 and at most {MAX_SLO_S:g} seconds")
    return Slo(**seconds)


def _workload(entry: _ProblemFile, names: list[str], path: Path) -> Workload:
    if isinstance(entry.workload, str):
        return read_workload(path.parent / entry.workload, len(names))
    try:
        spec = {key: _plain_time(key, value) for key, value in entry.workload.items()}
        traffic = traffic_from_spec(spec, names, path.parent)
    except ValueError as error:  # TrafficError is one
        raise InputError(f"{path}: workload: {error}") from error
    fields: dict[str, NDArray[Any]] = {"arrival": traffic.arrival, "model": traffic.model}
    if traffic.prompt_tokens is not None and traffic.output_tokens is not None:
        fields |= {"prompt_tokens": traffic.prompt_tokens, "output_tokens": traffic.output_tokens}
    return check_workload(fields, len(names), f"{path}: workload")


def _plain_time(key: str, value: Any) -> Any:
    """A time with a unit, as people write it in YAML, in seconds; anything else as it is."""
    is_time = isinstance(value, str) and key in ("duration", "start", "window", "period", "mean_on", "mean_off")
    return float(parse_seconds(value)) if is_time else value
