"""What stages took in service, by the workers' own count, and what a request alone takes beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness.draw import measured, send, simulated
from benchmarks.harness.watched_server import WatchedServer
from loadgen.client.run import Outcome as Sent
from placement.clocks import Floats
from placement.plan import Group, Plan, replica_profile
from placement.problem import Problem
from placement.profile import Profile, Shape, ShapeProfile

Stretch = dict[Shape, tuple[float, ...]]
"""How many times as long as profiled each stage of a shape took."""


def stretched(problem: Problem, factors: Stretch) -> Problem:
    """Where stages that answer in one pass take so many times as long."""

    def slow(entry: ShapeProfile) -> ShapeProfile:
        each = factors.get(entry.shape, (1.0,) * entry.pp)
        slower = {
            batch: tuple(factor * seconds for factor, seconds in zip(each, stages, strict=True))
            for batch, stages in entry.stage_latency.items()
        }
        return msgspec.structs.replace(entry, stage_latency=slower)

    models = (replace(model, profile=Profile(tuple(map(slow, model.profile.shapes)))) for model in problem.models)
    return replace(problem, models=tuple(models))


def stretch(problem: Problem, plan: Plan, sent: Sent, busy_s: Floats) -> Stretch:
    """One-pass requests, one by one; `busy_s`: what each stage computed for them, group by group. A model is on groups
    of one shape."""
    names = np.array([problem.models[number].name for number in sent.columns.model])[sent.columns.answered]
    each_s = {
        (group.shape, model): np.array(_stages_s(problem, group, model))
        for group in plan.groups
        for model in group.models
    }
    found: Stretch = {}
    ends = np.cumsum([group.pp for group in plan.groups])
    for shape in {group.shape for group in plan.groups}:
        counts = {model: np.count_nonzero(names == model) for of, model in each_s if of == shape}
        profiled_s = np.sum([count * each_s[shape, model] for model, count in counts.items()], axis=0)
        mine = [end for group, end in zip(plan.groups, ends, strict=True) if group.shape == shape]
        taken_s = np.sum([busy_s[end - shape.pp : end] for end in mine], axis=0)
        found[shape] = tuple((taken_s / profiled_s).tolist())
    return found


def overhead_s(
    problem: Problem, plan: Plan, server: WatchedServer, rate: float, requests: int, **traffic: Any
) -> float:
    """The median of what requests that come evenly, so that they do not meet, take beyond their stages."""
    ideal, before_s = replace(problem, overhead=0.0), server.busy_s()
    sent = send(server.url, rate=f"{rate}", cv="0.01", duration=f"{requests / rate}s", **traffic)
    model = stretched(ideal, stretch(ideal, plan, sent, server.busy_s() - before_s))
    beyond_s = measured(sent).latency_s - simulated(model, plan, sent.demand).latency_s
    return max(float(np.nanmedian(beyond_s)), 0.0)


def _stages_s(problem: Problem, group: Group, model: str) -> tuple[float, ...]:
    entry = replica_profile(group, model, problem)
    assert entry is not None
    return entry.stage_latency[1]
