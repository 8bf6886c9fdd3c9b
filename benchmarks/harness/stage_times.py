"""What stages took in service, by the workers' own count, and what a request alone takes beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.harness.draw import measured, send, simulated
from benchmarks.harness.watched_server import WatchedServer
from loadgen.client.run import Outcome as Sent
from placement.plan import Group, Plan, replica_profile
from placement.problem import Problem
from serving.controller.planning import paced


def stretched(problem: Problem, factor: float) -> Problem:
    """Where all that is profiled takes so many times as long."""
    models = tuple(replace(model, profile=paced(model.profile, factor)) for model in problem.models)
    return replace(problem, models=models)


def stretch(problem: Problem, plan: Plan, sent: Sent, busy_s: float) -> float:
    """How many times as long as profiled the stages took: one-pass requests, one by one. The first stage of a group is
    counted; the others are taken to be as much longer."""
    names = np.array([problem.models[number].name for number in sent.columns.model])[sent.columns.answered]
    profiled_s = {model: _first_stage_s(problem, group, model) for group in plan.groups for model in group.models}
    return busy_s / sum(profiled_s[name] for name in names.tolist())


def overhead_s(
    problem: Problem, plan: Plan, server: WatchedServer, rate: float, requests: int, **traffic: Any
) -> float:
    """The median of what requests that come evenly, so that they do not meet, take beyond their stages."""
    ideal, before_s = replace(problem, overhead=0.0), server.busy_s()
    sent = send(server.url, rate=f"{rate}", cv="0.01", duration=f"{requests / rate}s", **traffic)
    model = stretched(ideal, stretch(ideal, plan, sent, server.busy_s() - before_s))
    beyond_s = measured(sent).latency_s - simulated(model, plan, sent.demand).latency_s
    return max(float(np.nanmedian(beyond_s)), 0.0)


def _first_stage_s(problem: Problem, group: Group, model: str) -> float:
    entry = replica_profile(group, model, problem)
    assert entry is not None
    return entry.stage_latency[1][0]
