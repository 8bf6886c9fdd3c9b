"""One draw of arrivals, sent to a server and simulated: the same requests at the same times, and the same figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.client.run import Outcome as Sent
from loadgen.client.run import run_once
from loadgen.demand import Demand, make_demand
from loadgen.load_test import LoadTest, look_at
from loadgen.target.models import TargetModel
from loadgen.target.url import parse_url
from loadgen.traffic_options import TrafficOptions
from placement.outcome import Outcome
from placement.plan import Plan
from placement.problem import Problem, Slo
from placement.rules import Rule
from placement.simulate import simulate
from placement.workload import Workload

Floats = NDArray[np.float64]
Figures = dict[str, float]


@dataclass(frozen=True, eq=False)
class Seen:
    """Of each request, measured or simulated; NaN where it was not answered, or has no such time."""

    model: NDArray[np.int64]
    latency_s: Floats
    ttft_s: Floats
    tpot_s: Floats

    @property
    def first_s(self) -> Floats:
        """Until the first answer, or the only one."""
        first: Floats = np.where(np.isnan(self.ttft_s), self.latency_s, self.ttft_s)
        return first

    def met(self, goals: Sequence[Slo]) -> NDArray[np.bool_]:
        """A time that a request does not have is in time; one that was not answered is not."""
        limits = np.array([[goal.end_to_end, goal.ttft, goal.tpot] for goal in goals])[self.model]
        times = np.stack([self.latency_s, self.ttft_s, self.tpot_s], axis=1)
        met: NDArray[np.bool_] = np.isfinite(self.latency_s) & ~(times > limits).any(axis=1)
        return met

    def figures(self, goals: Sequence[Slo]) -> Figures:
        """Attainment; mean and p99 of the times of answered requests, in ms."""
        told = {"attainment": float(self.met(goals).mean()), "answered": float(np.isfinite(self.latency_s).mean())}
        for name in ("latency", "ttft", "tpot"):
            values = getattr(self, f"{name}_s")
            values = 1e3 * values[np.isfinite(values)]
            if len(values):
                told |= {f"{name}_ms": float(values.mean()), f"{name}_p99_ms": float(np.percentile(values, 99))}
        return {name: round(value, 5) for name, value in told.items()}


def send(url: str, **traffic: Any) -> Sent:
    """All of it, until the last is answered."""
    test = LoadTest(url=parse_url(url), traffic=TrafficOptions(**traffic))
    return run_once(test, look_at(test), test.traffic)


def demand_of(problem: Problem, **traffic: Any) -> Demand:
    """What `send` would send to a server with these models."""
    models = [TargetModel(model.name, "generate" if model.generates else "embed") for model in problem.models]
    return make_demand(TrafficOptions(**traffic), models)


def measured(sent: Sent) -> Seen:
    columns = sent.columns
    return Seen(columns.model, columns.latency_s, columns.ttft_s, columns.tpot_s)


def simulated(problem: Problem, plan: Plan, demand: Demand, rule: Rule = "deadline") -> Seen:
    """`problem` says what the requests are told: goals and overhead."""
    return seen_of(outcome_of(problem, plan, demand, rule), demand)


def outcome_of(problem: Problem, plan: Plan, demand: Demand, rule: Rule = "deadline") -> Outcome:
    workload = Workload(demand.arrival_s, demand.model, demand.prompt_tokens, demand.output_tokens)
    return simulate(problem, plan, workload, rule)


def seen_of(outcome: Outcome, demand: Demand) -> Seen:
    problem = outcome.problem
    generates = np.array([model.generates for model in problem.models])[demand.model]
    served = outcome.status == 0
    streamed = served & generates
    return Seen(
        model=demand.model.astype(np.int64),
        latency_s=np.where(served, outcome.finish - demand.arrival_s, np.nan),
        ttft_s=np.where(streamed, outcome.first - demand.arrival_s, np.nan),
        tpot_s=np.where(streamed & (demand.output_tokens > 1), outcome.time_per_token, np.nan),
    )


def with_goals(problem: Problem, slo: Slo) -> Problem:
    """As for requests that all bring this goal."""
    return replace(problem, models=tuple(replace(model, slo=slo) for model in problem.models))
