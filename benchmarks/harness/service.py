"""How a placement serves beside what its profile says, measured before it is tried: a factor on all times, and seconds
spent outside the stages. Found from requests that come alone and from a burst, by what the simulator makes of both.
A machine that others use is not always as fast as it was then: `drift` says how fast it was later, by the time that the
workers themselves count as busy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.harness.draw import Seen, demand_of, measured, outcome_of, seen_of, send, simulated
from benchmarks.harness.watched_server import WatchedServer
from loadgen.client.run import Outcome as Sent
from placement.dispatch import SERVED
from placement.outcome import Outcome
from placement.plan import Group, Plan, replica_profile
from placement.problem import Problem, Slo
from placement.rules import Rule
from serving.controller.planning import paced

PATIENT_S = 60.0
APART = 0.4
"""Requests that come evenly to a group, so many in the time one takes, do not meet."""
MOST_ALONE_S = 8.0
BURST_S = 0.05
AMONG, AMONG_S = 2.0, 6.0
"""So many sequences in a lane show how steps hold; a burst would show crowded ones, which a fit may miss by much."""
BUSY, BATCHES_S, SEED = 0.8, 8.0, 1000
"""Of what groups can do one by one: where batches begin to form, and for how long."""
LEAST, MOST = 0.5, 4.0
LOOKS = 4
PROMPT, SEQUENCES = 48, 4
"""A step like most, to tell stages apart by."""


@dataclass(frozen=True)
class Service:
    stretch: float
    """How many times as long as profiled a request occupies devices, with what passes between one and the next."""
    overhead_s: float
    """What a request takes beyond that, and that occupies nothing."""
    busy: float = 1.0
    """What first stages counted meanwhile for a request that was answered, over what the simulator makes of it."""

    def __str__(self) -> str:
        return f"{self.stretch:.3f} times as long as profiled, {1e3 * self.overhead_s:.2f} ms outside"

    def applied(self, problem: Problem) -> Problem:
        models = tuple(replace(model, profile=paced(model.profile, self.stretch)) for model in problem.models)
        return replace(problem, models=models, overhead=self.overhead_s)


def look_at_service(
    problem: Problem,
    plan: Plan,
    server: WatchedServer,
    *,
    rule: Rule = "deadline",
    alone: int = 24,
    burst: int = 48,
    **traffic: Any,
) -> Service:
    """`alone` requests that do not meet, then `burst` at once for each two groups (generating: some at a time)."""
    patient = replace(
        problem, overhead=0.0, models=tuple(replace(model, slo=_patient(model.slo)) for model in problem.models)
    )
    few = demand_of(problem, rate="1", cv="0.01", duration=f"{2 * len(problem.models)}s", **traffic)
    rate = APART * len(plan.groups) / float(np.nanmean(simulated(patient, plan, few).latency_s))
    told = {"slo": f"{PATIENT_S:g}s", "cv": "0.01", **traffic}
    apart = send(server.url, rate=f"{rate}", duration=f"{min(alone / rate, MOST_ALONE_S)}s", **told)
    count = burst * max(len(plan.groups) / 2, 1)
    among = {"rate": f"{count / BURST_S}", "duration": f"{BURST_S}s"}
    if any(model.generates for model in problem.models):
        among = {"rate": f"{AMONG / APART * rate}", "duration": f"{AMONG_S}s"}
    elif any(max(shape.stage_latency, default=1) > 1 for model in problem.models for shape in model.profile.shapes):
        # In a burst the batches are the largest there are; what is asked for is how usual ones hold.
        among = {"rate": f"{BUSY / APART * rate}", "duration": f"{BATCHES_S}s"}
        told |= {"cv": "1", "seed": SEED}
    before_s = server.busy_s()
    together = send(server.url, **among, **told)
    return _fit(Simulation(patient, plan, rule), apart, together, server.busy_s() - before_s)


def drift(model: Simulation, sent: Sent, busy_s: float, service: Service) -> float:
    """How many times as long as when the service was looked at everything took; `model` has the service applied."""
    factor = 1.0
    for _ in range(LOOKS):  # batches and queues are others at another speed
        factor *= _each_s(busy_s, sent) / model.busy_s(factor, sent) / service.busy
    return factor


@dataclass(frozen=True)
class Simulation:
    """What is simulated."""

    problem: Problem
    plan: Plan
    rule: Rule

    def stretched(self, stretch: float, sent: Sent) -> Seen:
        """What was sent, with all times so many times as long."""
        return seen_of(self._outcome(stretch, sent), sent.demand)

    def busy_s(self, stretch: float, sent: Sent) -> float:
        """How long the first stages of all groups are busy for each request that is answered."""
        outcome, total_s = self._outcome(stretch, sent), 0.0
        for index, group in enumerate(self.plan.groups):
            total_s += float(outcome.busy_s[index]) * self._first_share(group)
        return total_s / int((outcome.status == SERVED).sum())

    def _first_share(self, group: Group) -> float:
        """Of a group's busy time, that of its first stage over the mean of all."""
        entry = replica_profile(group, group.models[0], self.problem)
        assert entry is not None
        if entry.generation is not None:
            stages = [cost.seconds(PROMPT, SEQUENCES, 0, SEQUENCES * PROMPT) for cost in entry.generation.stages]
        else:
            stages = list(entry.stage_latency[1])
        return stages[0] / float(np.mean(stages))

    def _outcome(self, stretch: float, sent: Sent) -> Outcome:
        problem = self.problem
        models = tuple(replace(model, profile=paced(model.profile, stretch)) for model in problem.models)
        return outcome_of(replace(problem, models=models), self.plan, sent.demand, self.rule)


def _fit(model: Simulation, apart: Sent, together: Sent, busy_s: float) -> Service:
    """Such that the burst takes as long on average as it did, and a request alone as long to its first answer."""
    wanted_s, first = float(np.nanmean(measured(together).latency_s)), measured(apart).first_s
    low, high = LEAST, MOST
    while high > 1.0005 * low:
        middle = math.sqrt(low * high)
        outside_s = float(np.nanmedian(first - model.stretched(middle, apart).first_s))
        taken_s = float(np.nanmean(model.stretched(middle, together).latency_s)) + outside_s
        low, high = (low, middle) if taken_s > wanted_s else (middle, high)
    found = math.sqrt(low * high)
    outside_s = float(np.nanmedian(first - model.stretched(found, apart).first_s))
    return Service(found, max(outside_s, 0.0), _each_s(busy_s, together) / model.busy_s(found, together))


def _each_s(busy_s: float, sent: Sent) -> float:
    return busy_s / int(sent.columns.answered.sum())


def _patient(slo: Slo) -> Slo:
    """What a request brings that is sent with PATIENT_S: a pace between tokens stays the model's."""
    return Slo(ttft=PATIENT_S, tpot=slo.tpot) if math.isfinite(slo.ttft) else Slo(PATIENT_S)
