"""How a placement serves beside what its profile says, measured before it is tried: a factor on all times, and seconds
spent outside the stages. Found from requests that come alone and from many, by what the simulator makes of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.harness.draw import Seen, demand_of, measured, send, simulated
from benchmarks.harness.server import Server
from loadgen.client.run import Outcome as Sent
from placement.plan import Plan
from placement.problem import Model, Problem, Slo
from placement.rules import Rule
from serving.controller.planning import paced

PATIENT_S = 60.0
APART = 0.4
"""Requests that come evenly to a group, so many in the time one takes, do not meet."""
MOST_ALONE_S = 8.0
BURST_S = 0.05
BUSY = 0.8
"""Of the rate at which the placement is full: a burst would show crowded steps, and requests that queue how long they
queue, where what a step takes in use is asked for."""
SEED = 1000
"""Of arrivals by chance, others than those that are judged."""
LEAST, MOST = 0.5, 4.0
SOME_S = 1e-6
"""With an overhead, however small, the simulator hands batches over ahead, as the server that is looked at does."""


@dataclass(frozen=True)
class Service:
    stretch: float
    """How many times as long as profiled a request occupies devices, with what passes between one and the next."""
    overhead_s: float
    """What a request takes beyond that, and that occupies nothing."""

    def __str__(self) -> str:
        return f"{self.stretch:.3f} times as long as profiled, {1e3 * self.overhead_s:.2f} ms outside"

    def applied(self, problem: Problem) -> Problem:
        models = tuple(replace(model, profile=paced(model.profile, self.stretch)) for model in problem.models)
        return replace(problem, models=models, overhead=self.overhead_s)


def look_at_service(
    problem: Problem,
    plan: Plan,
    server: Server,
    *,
    full_per_s: float,
    rule: Rule = "deadline",
    alone: int = 24,
    burst: int = 48,
    seconds: float = 10.0,
    **traffic: Any,
) -> Service:
    """`alone` requests that do not meet, then many together: `burst` at once for each two groups, or where steps or
    batches hold several, for some seconds BUSY of the rate at which the placement is thought to be full."""
    patient = replace(
        problem, overhead=SOME_S, models=tuple(replace(model, slo=_patient(model.slo)) for model in problem.models)
    )
    few = demand_of(problem, rate="1", cv="0.01", duration=f"{2 * len(problem.models)}s", **traffic)
    rate = APART * len(plan.groups) / float(np.nanmean(simulated(patient, plan, few).latency_s))
    told = {"slo": f"{PATIENT_S:g}s", "cv": "0.01", **traffic}
    apart = send(server.url, rate=f"{rate}", duration=f"{min(alone / rate, MOST_ALONE_S)}s", **told)
    count = burst * max(len(plan.groups) / 2, 1)
    among = {"rate": f"{count / BURST_S}", "duration": f"{BURST_S}s"}
    if any(model.generates or _has_batches(model) for model in problem.models):
        among = {"rate": f"{BUSY * full_per_s}", "duration": f"{seconds}s"}
        told |= {"cv": "1", "seed": SEED}
    return _fit(Simulation(patient, plan, rule), apart, send(server.url, **among, **told))


@dataclass(frozen=True)
class Simulation:
    """What is simulated."""

    problem: Problem
    plan: Plan
    rule: Rule

    def of(self, sent: Sent, stretch: float = 1.0) -> Seen:
        """The same requests, with all times so many times as long as profiled."""
        models = tuple(replace(model, profile=paced(model.profile, stretch)) for model in self.problem.models)
        return simulated(replace(self.problem, models=models), self.plan, sent.demand, self.rule)


def _fit(model: Simulation, apart: Sent, together: Sent) -> Service:
    """Such that the burst takes as long on average as it did, and a request alone as long to its first answer."""
    wanted_s, first = float(np.nanmean(measured(together).latency_s)), measured(apart).first_s
    low, high = LEAST, MOST
    while high > 1.0005 * low:
        middle = math.sqrt(low * high)
        outside_s = float(np.nanmedian(first - model.of(apart, middle).first_s))
        taken_s = float(np.nanmean(model.of(together, middle).latency_s)) + outside_s
        low, high = (low, middle) if taken_s > wanted_s else (middle, high)
    found = math.sqrt(low * high)
    outside_s = float(np.nanmedian(first - model.of(apart, found).first_s))
    return Service(found, max(outside_s, 0.0))


def _has_batches(model: Model) -> bool:
    return any(max(shape.stage_latency, default=1) > 1 for shape in model.profile.shapes)


def _patient(slo: Slo) -> Slo:
    """What a request brings that is sent with PATIENT_S: a pace between tokens stays the model's."""
    return Slo(ttft=PATIENT_S, tpot=slo.tpot) if math.isfinite(slo.ttft) else Slo(PATIENT_S)
