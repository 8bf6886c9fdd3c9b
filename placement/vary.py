"""A problem varied along one axis: the point's problem, and other traffic of the same kind to score plans
on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from loadgen.errors import TrafficError
from loadgen.spec import traffic_from_spec
from placement.comparison import Axis
from placement.errors import InputError
from placement.problem import Problem
from placement.search.draws import make_draws
from placement.workload import Workload, check_workload

HELD_OUT = 3
_HELD_OUT_SEED = 1_000_003
"""Far from the seeds that a search with a seed near the comparison's uses."""


@dataclass(frozen=True)
class Setting:
    """A point's problem, whose workload is planned on, and the workloads that plans are scored on."""

    axis: Axis
    value: float
    problem: Problem
    held_out: tuple[Workload, ...]


def unvaried(problem: Problem, held_out: tuple[Workload, ...], seed: int) -> Setting:
    """The problem itself, on the axis of rate; draws made from its recording stand in where none are held
    out."""
    drawn = held_out or make_draws(problem.workload, len(problem.models), HELD_OUT + 1, seed + _HELD_OUT_SEED)[1:]
    return Setting("rate", 1.0, problem, tuple(drawn))


def varied(base: Setting, axis: Axis, value: float, seed: int) -> Setting:
    problem, held_out = base.problem, base.held_out
    if axis == "rate":
        problem = replace(problem, workload=problem.workload.faster(value))
        held_out = tuple(workload.faster(value) for workload in held_out)
    elif axis == "cv":
        held_out = tuple(with_cv(problem, value, seed + _HELD_OUT_SEED + n) for n in range(HELD_OUT))
        problem = replace(problem, workload=with_cv(problem, value, seed))
    elif axis == "slo_scale":
        problem = problem.with_slo_scale(value)
    else:
        problem = problem.with_devices(int(value))
    return Setting(axis, value, problem, held_out)


def gamma_workload(rates: Mapping[str, float], cv: float, duration_s: float, seed: int) -> Workload:
    """Gamma arrivals of the models in this order, at so many requests per second each."""
    spec = {"kind": "gamma", "duration": duration_s, "seed": seed, "rates": dict(rates), "cv": cv}
    try:
        traffic = traffic_from_spec(spec, list(rates))
    except TrafficError as error:
        raise InputError(f"cv {cv:g}: {error}") from error
    return check_workload({"arrival": traffic.arrival, "model": traffic.model}, len(rates), f"cv {cv:g}")


def with_cv(problem: Problem, cv: float, seed: int) -> Workload:
    """The problem's traffic drawn anew: each model at the rate it was recorded at, for as long, with gaps
    of this CV; token counts are drawn from the model's own."""
    recorded = problem.workload
    counts = recorded.counts(len(problem.models))
    span = max(recorded.duration, 1e-9)
    rates = {model.name: float(count) / span for model, count in zip(problem.models, counts, strict=True)}
    drawn = gamma_workload(rates, cv, span, seed)
    if recorded.prompt_tokens is None or recorded.output_tokens is None:
        return drawn
    rng = np.random.default_rng([seed, len(counts)])
    rows = np.zeros(len(drawn), np.int64)
    for model in np.unique(drawn.model):
        mine = drawn.model == model
        rows[mine] = rng.choice(np.flatnonzero(recorded.model == model), int(mine.sum()))
    return replace(drawn, prompt_tokens=recorded.prompt_tokens[rows], output_tokens=recorded.output_tokens[rows])
