"""The largest rate, the largest CV and the tightest SLO that each policy serves at 99% attainment.

python benchmarks/max_rate.py [--cases c01 c09] [--steps N] [--precision 0.02] [--tiny]

Rate: planned on train.npz, scored on eval0..3, all made faster alike. CV: Gamma arrivals at 0.3 of the
case's rates, planned on one seed, scored on four others. SLO: scale x single-device latency, at 0.3 of the
rate, planned on train.npz, scored on eval0..3. Baselines are searched under shortest-queue, as published,
and scored under both rules; ours is searched and scored under deadline. Prints one JSON line; progress goes
to stderr."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from benchmarks.cases import case_names, data_root, emit, emit_skipped, note, read_case
from placement.cluster import Cluster
from placement.compare import find_limit
from placement.files import convert
from placement.plan import Plan
from placement.planner import Policy, make_plan
from placement.problem import Model, Problem, Slo
from placement.profile import Profile
from placement.rules import Rule
from placement.search.effort import Effort
from placement.simulate import simulate
from placement.vary import gamma_workload
from placement.workload import Workload

Axis = Literal["rate", "cv", "slo_scale"]
OURS = "penstock/deadline"
THEIRS = "alpaserve/shortest-queue"
CONTESTANTS: tuple[tuple[Policy, Rule], ...] = (
    ("penstock", "deadline"),
    ("alpaserve", "shortest-queue"),
    ("alpaserve", "deadline"),
    ("round-robin", "shortest-queue"),
    ("round-robin", "deadline"),
    ("replication", "shortest-queue"),
    ("replication", "deadline"),
)
RANGES: dict[Axis, tuple[float, float]] = {"rate": (0.02, 4.0), "cv": (0.5, 30.0), "slo_scale": (25.0, 1.0)}
"""Of each axis the easiest and the hardest value tried."""
TINY_RANGES: dict[Axis, tuple[float, float]] = {
    "rate": (0.2, 4.0),
    "cv": (0.5, 5.0),
    "slo_scale": (10.0, 1.0),
}
BEYOND = (1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35)
"""Attainment does not fall all the way: so many times harder values are tried too before a limit is named."""
LOW_RATE = 0.3
AT = 0.99
# AlpaServe's own search and simulator on these cases, as measured once with its code.
PEER: dict[str, Any] = {
    "alpaserve": {
        "c01": {"rate": 0.97, "cv": 6, "slo_scale": 3},
        "c09": {"rate": 0.97, "cv": 8, "slo_scale": 2.5},
    },
    "replication": {"rate": "below 0.05"},
}


@dataclass(frozen=True)
class Contest:
    """A problem with other draws of its traffic, and how that traffic was made."""

    problem: Problem
    evaluations: tuple[Workload, ...]
    rates: dict[str, float]
    slo_scale: float
    duration_s: float
    ranges: Mapping[Axis, tuple[float, float]] = field(default_factory=lambda: RANGES)

    def at(self, axis: Axis, value: float) -> tuple[Problem, tuple[Workload, ...]]:
        """What to plan, and what to score the plan on."""
        if axis == "cv":
            rates = {name: LOW_RATE * rate for name, rate in self.rates.items()}
            draws = [gamma_workload(rates, value, self.duration_s, seed) for seed in range(5)]
            return replace(self.problem, workload=draws[0]), tuple(draws[1:])
        speed = value if axis == "rate" else LOW_RATE
        problem = replace(self.problem, workload=self.problem.workload.faster(speed))
        if axis == "slo_scale":
            problem = problem.with_slo_scale(value / self.slo_scale)
        return problem, tuple(workload.faster(speed) for workload in self.evaluations)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["c01", "c09"], help="folders under cases/")
    parser.add_argument("--steps", type=int, default=400, help="effort of our search at each value")
    parser.add_argument("--precision", type=float, default=0.02, help="relative; where bisection stops")
    parser.add_argument("--tiny", action="store_true", help="a small generated case, for tests")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.steps, options.precision = 10, 0.5
        contests = {"tiny": tiny()}
    else:
        missing = sorted(set(options.cases) - set(case_names()))
        if missing:
            note(f"no case {missing[0]} in {data_root() / 'cases'}; set PENSTOCK_DATA to the folder of cases/")
            emit_skipped("max_rate")
            return
        contests = {name: recorded(name) for name in options.cases}
    started = time.perf_counter()
    found = {
        name: {axis: limits(name, contest, axis, options.steps, options.precision) for axis in RANGES}
        for name, contest in contests.items()
    }
    ratios = {name: ours_over_theirs(values) for name, values in found.items()}
    rates = [ratio["rate"] for ratio in ratios.values() if ratio["rate"] is not None]
    line = {
        "benchmark": "max_rate",
        "ratio": math.prod(rates) ** (1 / len(rates)) if rates else None,
        "ratios": ratios,
        "cases": found,
        "peer": PEER,
        "at": AT,
        "steps": options.steps,
        "precision": options.precision,
        "seconds": round(time.perf_counter() - started, 1),
    }
    emit(line)


def limits(name: str, contest: Contest, axis: Axis, steps: int, precision: float) -> dict[str, float | None]:
    """By "policy/rule" the hardest value served; None where not even the easiest is."""

    @cache
    def plan(policy: Policy, value: float) -> Plan:
        return make_plan(contest.at(axis, value)[0], policy, effort=Effort(steps=steps))

    def attainment(policy: Policy, rule: Rule) -> Callable[[float], float]:
        def at(value: float) -> float:
            problem, evaluations = contest.at(axis, value)
            chosen = plan(policy, value)
            each = [simulate(problem, chosen, workload, rule).attainment for workload in evaluations]
            note(f"{name} {axis} {value:.4g} {policy}/{rule}: {sum(each) / len(each):.4f}")
            return sum(each) / len(each)

        return at

    found: dict[str, float | None] = {}
    for policy, rule in CONTESTANTS:
        limit = find_limit(attainment(policy, rule), *contest.ranges[axis], AT, precision, BEYOND)
        found[f"{policy}/{rule}"] = None if limit.holds is None else round(limit.holds, 4)
    return found


def ours_over_theirs(found: dict[Axis, dict[str, float | None]]) -> dict[str, float | None]:
    """How many times the rate, the CV, and the tightness of the SLO."""
    ratios: dict[str, float | None] = {}
    for axis, values in found.items():
        ours, theirs = values[OURS], values[THEIRS]
        if axis == "slo_scale":
            ours, theirs = theirs, ours
        ratios["slo_tightness" if axis == "slo_scale" else axis] = (
            None if ours is None or theirs is None else round(ours / theirs, 3)
        )
    return ratios


def recorded(name: str) -> Contest:
    case = read_case(name)
    rates = {model["name"]: float(model["rate"]) for model in case.traffic["models"]}
    return Contest(
        case.problem,
        tuple(case.evals),
        rates,
        float(case.traffic["slo_scale"]),
        case.problem.workload.duration,
    )


def tiny() -> Contest:
    """Four models on four devices, two of which fit on one; half a minute of traffic."""
    shapes = [
        {"tp": 1, "pp": 1, "stage_latency": {"1": [0.1]}, "stage_memory": [2**30]},
        {"tp": 1, "pp": 2, "stage_latency": {"1": [0.052, 0.052]}, "stage_memory": [2**29] * 2},
        {"tp": 1, "pp": 4, "stage_latency": {"1": [0.028] * 4}, "stage_memory": [2**28] * 4},
    ]
    profile = convert({"shapes": shapes}, Profile, "tiny")
    cluster = convert({"nodes": [{"name": "n", "devices": 4, "memory": 2**31}]}, Cluster, "tiny")
    rates = {f"m{number}": 4.0 for number in range(4)}
    draws = [gamma_workload(rates, 3.0, 30.0, seed) for seed in range(3)]
    models = tuple(Model(name, profile, Slo(0.5)) for name in rates)
    return Contest(Problem(cluster, models, draws[0]), tuple(draws[1:]), rates, 5.0, 30.0, TINY_RANGES)


if __name__ == "__main__":
    main()
