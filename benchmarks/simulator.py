"""Is the simulator right, and how fast? Every attainment the peer recorded, to 1e-5; requests per second on one core.

    python benchmarks/simulator.py [--tiny]

The world for speed: 16 groups of 4 stages, 32 models, each on all 16 groups or on 4 of them. `limit`: the same
requests through the plain reference, in the same run. AlpaServe, measured on this kind of machine: 22 million
requests/s compiled, 40 thousand with batching.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.cases import case_names, emit, note, read_case
from loadgen.arrivals import gamma_arrivals
from placement.cluster import Cluster, Node
from placement.plan import Group, Plan
from placement.problem import Model, Problem, Slo
from placement.profile import Profile, ShapeProfile
from placement.reference import serve
from placement.rules import Rule
from placement.simulate import simulate
from placement.simulator import count_served
from placement.tables import Catalogue
from placement.units import Bytes
from placement.workload import Workload

GROUPS, STAGES, MODELS = 16, 4, 32
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a few thousand requests, no cases: a check that it runs")
    tiny = parser.parse_args().tiny
    result: dict[str, object] = {"benchmark": "simulator", **_speed(5_000 if tiny else 1_000_000)}
    if not tiny:
        result |= _difference()
    emit(result)


def _difference() -> dict[str, object]:
    """The largest difference from an attainment that the peer recorded, over all cases, policies and draws."""
    names = case_names()
    worst = 0.0
    compared = 0
    for name in names:
        case = read_case(name)
        for peer in case.peers:
            for draw, recorded in zip(case.evals, peer.attainment, strict=True):
                outcome = simulate(case.problem, peer.plan, draw, "shortest-queue", 1)
                worst = max(worst, abs(outcome.attainment - recorded))
                compared += 1
        note(f"{name}: largest difference so far {worst:.1e}")
    if not compared:
        return {"recorded_attainments": "skipped: no cases; set PENSTOCK_DATA"}
    return {"recorded_attainments": compared, "largest_difference": worst, "equal_to_1e-5": worst <= 1e-5}


def _speed(requests: int) -> dict[str, object]:
    """Million requests per second, median and spread of interleaved rounds."""
    runs: dict[str, Callable[[], float]] = {}
    for label, replicas, load, rule, batch in (
        ("shortest_queue", GROUPS, 0.6, "shortest-queue", 1),
        ("shortest_queue_4_replicas", 4, 0.6, "shortest-queue", 1),
        ("late_binding", GROUPS, 0.6, "deadline", 1),
        ("late_binding_4_replicas", 4, 0.6, "deadline", 1),
        ("late_binding_batching", GROUPS, 0.6, "deadline", 16),
        ("late_binding_overload", GROUPS, 1.2, "deadline", 1),
    ):
        runs[label] = _run(replicas, load, rule, batch, requests)  # type: ignore[arg-type]
    for run in runs.values():
        run()  # compiles
    rates: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(ROUNDS):
        for label, run in runs.items():
            rates[label].append(requests / run() / 1e6)
    plain = _plain_rate(min(requests, 5_000))
    median = {label: statistics.median(each) for label, each in rates.items()}
    return {
        "million_requests_per_s": {label: round(value, 2) for label, value in median.items()},
        "spread": {label: [round(min(each), 2), round(max(each), 2)] for label, each in rates.items()},
        "plain_reference_million_per_s": round(plain, 5),
        "ratio_to_plain": round(median["late_binding"] / plain, 1),
        "ratio_to_30_million": round(median["shortest_queue"] / 30, 2),
        "ratio_to_5_million_late_binding": round(median["late_binding"] / 5, 2),
        "ratio_to_5_million_batching": round(median["late_binding_batching"] / 5, 2),
        "ratio_to_alpaserve_22_million": round(median["shortest_queue"] / 22, 2),
    }


def _run(replicas: int, load: float, rule: Rule, batch: int, requests: int) -> Callable[[], float]:
    problem, plan = _world(replicas, load, requests)
    catalogue = Catalogue(problem)
    tables = catalogue.tables(plan)

    def run() -> float:
        begin = time.perf_counter()
        count_served(tables, catalogue.stages, problem.workload, rule, batch)
        return time.perf_counter() - begin

    return run


def _plain_rate(requests: int) -> float:
    problem, plan = _world(GROUPS, 0.6, requests)
    begin = time.perf_counter()
    serve(problem, plan, problem.workload, "deadline", 1)
    return requests / (time.perf_counter() - begin) / 1e6


def _world(replicas: int, load: float, requests: int) -> tuple[Problem, Plan]:
    """Groups of equal pipelines; `load` is the share of their capacity that is asked for."""
    latency = {1: (0.04,) * STAGES, 2: (0.075,) * STAGES, 4: (0.14,) * STAGES}
    shape = ShapeProfile(tp=1, pp=STAGES, stage_memory=(Bytes(1),) * STAGES, stage_latency=latency)
    models = tuple(Model(f"m{n}", Profile((shape,)), Slo(0.8)) for n in range(MODELS))
    rate = load * GROUPS / 0.04
    rng = np.random.default_rng(0)
    arrival = gamma_arrivals(rate, 2.0, requests / rate, rng)
    workload = Workload(arrival, rng.integers(0, MODELS, len(arrival)).astype(np.int32))
    cluster = Cluster((Node("n", GROUPS * STAGES, Bytes(10**9)),))
    held: list[list[str]] = [[] for _ in range(GROUPS)]
    for n in range(MODELS):
        for step in range(replicas):
            held[(n + step * GROUPS // replicas) % GROUPS].append(f"m{n}")
    groups = tuple(
        Group(tuple(f"n/{g * STAGES + s}" for s in range(STAGES)), 1, STAGES, tuple(held[g])) for g in range(GROUPS)
    )
    return Problem(cluster, models, workload), Plan(groups)


if __name__ == "__main__":
    main()
