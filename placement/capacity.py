"""How much traffic a plan still holds when groups of its ladder are drained: found by simulation, before it matters.

Demand is counted in seconds of device time a second (`work`), so that traffic of another mix than planned can be
compared with what was simulated: all models together, and each alone, must stay below what a rung holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from placement.clocks import Floats
from placement.files import convert
from placement.plan import Plan
from placement.problem import Problem
from placement.simulate import DEFAULT_MAX_BATCH, simulate
from placement.tables import Catalogue
from placement.workload import Workload

FEWEST, MOST_SIMULATED = 600, 20_000
"""Requests of one simulation."""
LONG = 8.0
"""It lasts so many times as long as the longest goal, lest a queue be taken for capacity."""
HALVINGS = 10
LEAST, MOST = 2.0**-6, 2.0**10
"""Of the planned rate; what is searched between."""
MOST_ALONE = 16
"""Of more models than this none is simulated alone: the mix must do."""
ENOUGH = 40
"""A model with fewer requests in a simulation is not judged by itself."""
SLACK = 0.005
"""Of attainment: what so few requests cannot tell."""


class Rung(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Groups that are drained, and the demand that the others hold."""

    drained: tuple[int, ...]
    work_per_s: float
    """Of all models, in the mix that was planned for."""
    models: dict[str, float] = {}
    """Of one model while nobody asks for the others."""

    def load(self, demand: Mapping[str, float]) -> float:
        """Demand (work a second, by model) over what the rung holds: above 1 it does not."""
        total = sum(demand.values())
        alone = (work / self.models[name] if self.models[name] else np.inf for name, work in demand.items() if work > 0)
        known = list(alone) if self.models else []
        return max(total / self.work_per_s if self.work_per_s else np.inf, *known, 0.0) if total > 0 else 0.0


@dataclass(frozen=True)
class UsualRequest:
    """What a request of a model costs: seconds of device time, at so many tokens (0: whatever it brings)."""

    work_s: float
    tokens: float

    def work(self, tokens: float) -> float:
        return self.work_s * tokens / self.tokens if self.tokens else self.work_s


def usual_requests(problem: Problem) -> dict[str, UsualRequest]:
    """Of each model, by its profile and the traffic that was planned for."""
    catalogue = Catalogue(problem)
    least = np.where(np.isfinite(catalogue.request_seconds), catalogue.request_seconds, np.inf).min(axis=0)
    workload = problem.workload
    found = {}
    for index, model in enumerate(problem.models):
        rows, tokens = workload.model == index, 0.0
        if model.generates and workload.prompt_tokens is not None and workload.output_tokens is not None and rows.any():
            tokens = float((workload.prompt_tokens[rows] + workload.output_tokens[rows]).mean())
        found[model.name] = UsualRequest(float(least[index]), tokens)
    return found


def find_rungs(problem: Problem, plan: Plan, max_batch: int = DEFAULT_MAX_BATCH) -> tuple[Rung, ...]:
    """Of the whole plan first, then of each step of its ladder."""
    rates = problem.workload.counts(len(problem.models)) / max(problem.workload.duration, 1e-9)
    work_s = np.array([one.work_s for one in usual_requests(problem).values()])
    owed = _owed(problem, plan, max_batch)
    rungs = []
    for drained in ((), *plan.ladder):
        left = Plan(tuple(group for index, group in enumerate(plan.groups) if index not in drained))
        mix = _held(problem, left, rates, owed, max_batch) * float(rates @ work_s)
        alone = {}
        if len(problem.models) <= MOST_ALONE:
            for index, model in enumerate(problem.models):
                only = np.zeros_like(rates)
                only[index] = rates[index] or rates.mean()
                alone[model.name] = _held(problem, left, only, owed, max_batch) * float(only @ work_s)
        rungs.append(Rung(drained, mix, alone))
    return tuple(rungs)


def with_rungs(plan: Plan, rungs: tuple[Rung, ...]) -> Plan:
    """The plan that says so itself."""
    return msgspec.structs.replace(plan, planner=plan.planner | {"rungs": msgspec.to_builtins(rungs)})


def rungs_of(plan: Plan) -> tuple[Rung, ...]:
    """What a plan says of its rungs; nothing where it does not."""
    told: Any = plan.planner.get("rungs", ())
    return convert(told, tuple[Rung, ...], "plan: planner.rungs") if told else ()


def _owed(problem: Problem, plan: Plan, max_batch: int) -> Floats:
    """[models + 1] attainment that a rung must reach, the last of all together: the targets, or where the whole plan
    misses them on calm traffic as planned, what it reaches."""
    counts = problem.workload.counts(len(problem.models))
    calm = _calm(problem, counts / max(problem.workload.duration, 1e-9))
    reached = _attainment(problem, plan, calm, max_batch)
    targets = np.array([*(model.target for model in problem.models), min(model.target for model in problem.models)])
    owed: Floats = np.minimum(targets, np.where(np.isnan(reached), 1.0, reached)) - SLACK
    return owed


def _held(problem: Problem, plan: Plan, rates: Floats, owed: Floats, max_batch: int) -> float:
    """The largest multiple of the rates that the plan holds; 0 where it holds not even the least."""
    low, high = np.log2(LEAST), np.log2(MOST)
    found = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        reached = _attainment(problem, plan, _calm(problem, 2.0**middle * rates), max_batch)
        if (np.isnan(reached) | (reached >= owed)).all():
            low, found = middle, float(2.0**middle)
        else:
            high = middle
    return found


def _attainment(problem: Problem, plan: Plan, workload: Workload, max_batch: int) -> Floats:
    """[models + 1], the last of all together; NaN where there are too few to tell."""
    met = simulate(problem, plan, workload, max_batch=max_batch).met
    counts = workload.counts(len(problem.models))
    each = np.bincount(workload.model, met, len(problem.models)) / np.maximum(counts, 1)
    return np.append(np.where(counts >= ENOUGH, each, np.nan), met.mean())


def _calm(problem: Problem, rates: Floats) -> Workload:
    """Poisson arrivals at these rates: bursts are counted where demand is measured, over short times."""
    rng = np.random.default_rng(0)
    total = float(rates.sum())
    goal_s = max(model.slo.first_token for model in problem.models)
    count = int(min(max(LONG * goal_s * total, FEWEST), MOST_SIMULATED))
    arrival = np.cumsum(rng.exponential(1 / total, count))
    model = rng.choice(len(rates), count, p=rates / total).astype(np.int32)
    planned = problem.workload
    if planned.prompt_tokens is None or planned.output_tokens is None:
        return Workload(arrival, model)
    rows = np.zeros(count, np.int64)
    for index in np.unique(model):
        known, wanted = np.flatnonzero(planned.model == index), model == index
        rows[wanted] = rng.choice(known if len(known) else len(planned), int(wanted.sum()))
    return Workload(arrival, model, planned.prompt_tokens[rows], planned.output_tokens[rows])
