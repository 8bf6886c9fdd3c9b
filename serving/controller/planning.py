"""From a configuration to a problem and its first plan: profiles measured or read, traffic as described, plan given,
remembered or searched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from loadgen.spec import traffic_from_spec
from placement.cache import cache_folder
from placement.capacity import find_rungs, with_rungs
from placement.errors import InputError
from placement.files import convert, read_document, write_json
from placement.plan import Plan, read_plan
from placement.planner import default_steps, lendable_plan, make_plan
from placement.problem import Model, Problem
from placement.profile import Generation, Profile, ShapeProfile
from placement.rules import Rule
from placement.search.effort import Effort
from placement.workload import Workload, check_workload, read_workload
from serving.config import ModelEntry, ServeConfig, TrafficConfig
from serving.controller.expert_files import with_whole_paths
from serving.models import ModelConfig

PLANNED_S = 600.0
"""Of traffic that is described and not recorded."""
LEAST_REQUESTS = 2000
USUAL_TRAFFIC = TrafficConfig(rate=1.0, cv=2.0)
USUAL_TOKENS = 128
METHOD = 3
"""Counts up when planning changes so that remembered plans are no longer what would be found."""

OnProgress = Callable[[float, str], None]


def read_profiles(path: Path) -> dict[str, Profile]:
    return {name: convert(one, Profile, f"{path}: {name}") for name, one in read_document(path, dict[str, Any]).items()}


def make_problem(config: ServeConfig, configs: Mapping[str, ModelConfig], profiles: Mapping[str, Profile]) -> Problem:
    """`configs`: what each model's directory says."""
    pace = config.workers.pace if config.workers.kind == "paced" else 1.0
    models = tuple(_model(entry, profiles, pace) for entry in config.models)
    return Problem(
        cluster=config.cluster,
        models=models,
        workload=_workload(config, models, configs),
        overhead=float(config.overhead),
        objective=config.objective,
    )


def find_plan(
    problem: Problem,
    given: Path | None,
    rule: Rule = "deadline",
    on_progress: OnProgress = lambda share, note: None,
    lends: bool = False,
) -> tuple[Plan, str]:
    """The plan to start with, and where it comes from. One that `lends` can spare groups at falling traffic, if that
    costs next to nothing, and says what the others hold."""
    if given is not None:
        return with_whole_paths(read_plan(given, problem), given.parent), f"given: {given}"
    kind = ("" if rule == "deadline" else f"-{rule}") + ("-lends" if lends else "")
    path = cache_folder("plans") / f"{_digest(problem)}{kind}.json"
    if path.is_file():
        try:
            return read_plan(path, problem), "planned for this configuration by an earlier start"
        except InputError:  # damaged, or of another version: found again, and replaced
            path.unlink(missing_ok=True)
    effort = Effort(
        steps=default_steps(problem), on_progress=lambda share, best: on_progress(share, f"best so far {best:.4f}")
    )
    plan = make_plan(problem, rule=rule, effort=effort)
    if lends:
        plan = lendable_plan(problem, plan, effort)
        plan = with_rungs(plan, find_rungs(problem, plan))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, plan)
    except (OSError, InputError):
        pass  # a folder that cannot be written is no reason to fail
    return plan, "planned for the traffic the configuration describes"


def _model(entry: ModelEntry, profiles: Mapping[str, Profile], pace: float) -> Model:
    name = entry.profile or entry.name
    if name not in profiles:
        known = ", ".join(sorted(profiles)[:8])
        raise InputError(f"models ({entry.name}): no profile {name!r}; there are {known}")
    profile = profiles[name] if pace == 1 else paced(profiles[name], pace)
    alone = entry.foreign is not None
    if alone:
        profile = within_nodes(profile)
    return Model(entry.name, profile, entry.goal, float(entry.target), entry.weight, alone)


def within_nodes(profile: Profile) -> Profile:
    """Of an engine of others, which is started on one node."""
    exact = {(shape.shape, shape.kind) for shape in profile.shapes if shape.span == "node"}
    wanted = (
        shape
        for shape in profile.shapes
        if shape.span == "node" or (shape.span is None and (shape.shape, shape.kind) not in exact)
    )
    return Profile(tuple(msgspec.structs.replace(shape, span="node") for shape in wanted))


def paced(profile: Profile, pace: float) -> Profile:
    """Of workers that take `pace` times as long for every step."""

    def slow(shape: ShapeProfile) -> ShapeProfile:
        latency = {batch: tuple(pace * s for s in stages) for batch, stages in shape.stage_latency.items()}
        generation = shape.generation
        if generation is not None:
            stages = tuple(cost.times(pace) for cost in generation.stages)
            generation = Generation(stages, generation.kv_bytes_per_token)
        return msgspec.structs.replace(shape, stage_latency=latency, generation=generation)

    return Profile(tuple(slow(shape) for shape in profile.shapes))


def _workload(config: ServeConfig, models: tuple[Model, ...], configs: Mapping[str, ModelConfig]) -> Workload:
    if isinstance(config.workload, str):
        return read_workload(Path(config.workload), len(models))
    names = [model.name for model in models]
    try:
        arrivals = traffic_from_spec(config.workload or _spec(config, models, configs), names, Path())
    except ValueError as error:  # TrafficError is one
        raise InputError(f"workload: {error}") from error
    fields: dict[str, Any] = {"arrival": arrivals.arrival, "model": arrivals.model}
    if arrivals.prompt_tokens is not None and arrivals.output_tokens is not None:
        fields |= {"prompt_tokens": arrivals.prompt_tokens, "output_tokens": arrivals.output_tokens}
    return check_workload(fields, len(names), "workload")


def _spec(config: ServeConfig, models: tuple[Model, ...], configs: Mapping[str, ModelConfig]) -> dict[str, Any]:
    """The models' own `traffic`."""
    traffic = {entry.name: entry.traffic or USUAL_TRAFFIC for entry in config.models}
    total = sum(one.rate for one in traffic.values())
    if total <= 0:
        raise InputError("models: no traffic is expected for any of them; give one a rate above 0")
    tokens = {}
    for model in models:
        if model.generates:
            longest = configs[model.name].max_positions // 2
            one = traffic[model.name]
            prompt, output = (min(n or USUAL_TOKENS, longest) for n in (one.prompt_tokens, one.output_tokens))
            tokens[model.name] = {
                "prompt": {"mean": prompt, "cv": 1.0, "min": 1, "max": longest},
                "output": {"mean": output, "cv": 1.0, "min": 1, "max": longest},
            }
    return {
        "kind": "gamma",
        "duration": max(PLANNED_S, LEAST_REQUESTS / total),
        "seed": 0,
        "rates": {name: one.rate for name, one in traffic.items()},
        "cv": {name: one.cv for name, one in traffic.items()},
        **({"tokens": tokens} if tokens else {}),
    }


def _digest(problem: Problem) -> str:
    """Of everything a plan depends on."""
    workload = problem.workload
    whole = hashlib.sha256(workload.arrival.tobytes() + workload.model.tobytes())
    for tokens in (workload.prompt_tokens, workload.output_tokens):
        whole.update(b"-" if tokens is None else tokens.tobytes())
    facts = [METHOD, problem.cluster, problem.overhead, problem.objective]
    models = [[one.name, one.profile, vars(one.slo), one.target, one.weight, one.alone] for one in problem.models]
    whole.update(repr([facts, models]).encode())
    return whole.hexdigest()[:32]
