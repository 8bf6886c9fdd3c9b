"""Does our planner place better than AlpaServe's? Planned on train.npz, scored on eval0..3.npz, mean over the draws.

    python -m benchmarks.planner_cases [--cases c01 ...] [--steps N] [--tiny]

(a) the whole: our plan under our dispatch, against the best of all peer policies recorded for the case;
(b) the plan alone: planned for and scored under the peer's own rule, in the CPU seconds its search took (1 s at least).
Prints one JSON line; the peer's figures are those recorded in the case's peer.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.cases import Case, PeerPlan, case_names, emit, emit_skipped, note, read_case
from placement.example import example_problem
from placement.plan import Plan
from placement.planner import Policy, default_steps, make_plan
from placement.rules import RULES, Rule
from placement.search.candidate import Candidate, Space
from placement.search.draws import make_draws
from placement.search.effort import Effort
from placement.search.layouts import uniform_layout, useful_classes
from placement.search.measure import count_met
from placement.simulate import DEFAULT_MAX_BATCH, simulate
from placement.tables import Catalogue

MISSES_ENOUGH = 0.003
"""Cases in which the peer misses more than this share count for the mean cut."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--tiny", action="store_true", help="one small generated case: a check that it runs")
    arguments = parser.parse_args()
    names = [] if arguments.tiny else arguments.cases or case_names()
    if not names and not arguments.tiny:
        emit_skipped("planner_cases")
        return
    cases = [_tiny_case()] if arguments.tiny else [read_case(name) for name in names]
    rows = {}
    for case in cases:
        rows[case.name] = _measure(case, 20 if arguments.tiny else arguments.steps or default_steps(case.problem))
        note(f"{case.name}: {rows[case.name]}")
    emit({"benchmark": "planner_cases", **_summary(rows), "cases": rows})


def _measure(case: Case, steps: int) -> dict[str, Any]:
    peer = case.best_peer
    for rule in RULES:
        make_plan(case.problem, rule=rule, effort=Effort(steps=1))  # compiles
    begin = time.process_time()
    whole = make_plan(case.problem, effort=Effort(steps=steps))
    seconds = time.process_time() - begin
    ours, our_worst = _score(case, whole, "deadline")
    budget = max(sum(other.search_s for other in case.peers if other.name == "mp-search"), 1.0)
    alone = make_plan(case.problem, rule="shortest-queue", max_batch=1, effort=Effort(seconds=budget))
    plan_only, plan_worst = _score(case, alone, "shortest-queue")
    theirs, their_worst = _score(case, peer.plan, "shortest-queue")
    return {
        "peer": peer.name,
        "peer_attainment": peer.mean,
        "peer_worst_model": round(their_worst, 5),
        "ours": round(ours, 5),
        "our_worst_model": round(our_worst, 5),
        "our_dispatch_on_peer_plan": round(_score(case, peer.plan, "deadline")[0], 5),
        "missed_share_cut": round(1 - (1 - ours) / max(1 - theirs, 1e-9), 3),
        "baselines_ours_and_recorded": _baselines(case),
        "limit_without_memory": round(_without_memory(case), 5),
        "cpu_s": round(seconds, 1),
        "plan_alone": round(plan_only, 5),
        "plan_alone_worst_model": round(plan_worst, 5),
        "plan_alone_budget_s": budget,
    }


def _score(case: Case, plan: Plan, rule: Rule) -> tuple[float, float]:
    """Mean attainment over the draws, and that of the worst model over all draws together."""
    batch = DEFAULT_MAX_BATCH if rule == "deadline" else 1
    outcomes = [simulate(case.problem, plan, draw, rule, batch) for draw in case.evals]
    models = len(case.problem.models)
    met = sum(np.bincount(o.workload.model, weights=o.met, minlength=models) for o in outcomes)
    asked = sum(draw.counts(models) for draw in case.evals)
    return statistics.mean(o.attainment for o in outcomes), float(np.min(met / np.maximum(asked, 1)))


def _baselines(case: Case) -> dict[str, list[float]]:
    """Our restatement of the peer's policies beside what its own code was recorded with."""
    recorded = {peer.name: peer.mean for peer in case.peers}
    pairs: tuple[tuple[Policy, str], ...] = (("alpaserve", "mp-search"), ("replication", "sr-greedy"))
    both: dict[str, list[float]] = {}
    for policy, name in pairs:
        if name in recorded:
            plan = make_plan(case.problem, policy, rule="shortest-queue", max_batch=1)
            both[policy] = [round(_score(case, plan, "shortest-queue")[0], 5), recorded[name]]
    return both


def _without_memory(case: Case) -> float:
    """The best attainment of equal groups that all hold every model, whether or not it fits: what memory costs."""
    space = Space(Catalogue(case.problem))
    best = 0.0
    for kind in space.kinds:
        for one in useful_classes(space, kind):
            layout = uniform_layout(space, kind, one)
            everything = Candidate(layout, np.ones((len(layout), len(case.problem.models)), np.bool_))
            met = [count_met(space, everything, draw, "deadline", DEFAULT_MAX_BATCH).sum() for draw in case.evals]
            best = max(best, statistics.mean(m / len(draw) for m, draw in zip(met, case.evals, strict=True)))
    return float(best)


def _summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    missing = [row for row in rows.values() if 1 - row["peer_attainment"] > MISSES_ENOUGH]
    return {
        "mean_missed_share_cut": round(statistics.mean([row["missed_share_cut"] for row in missing] or [0.0]), 3),
        "least_gain": round(min(row["ours"] - row["peer_attainment"] for row in rows.values()), 5),
        "worst_model_lower_in": [n for n, r in rows.items() if r["our_worst_model"] < r["peer_worst_model"] - 1e-4],
        "plan_alone_least_gain": round(min(row["plan_alone"] - row["peer_attainment"] for row in rows.values()), 5),
        "plan_alone_mean_gain": round(
            statistics.mean(row["plan_alone"] - row["peer_attainment"] for row in rows.values()), 5
        ),
    }


def _tiny_case() -> Case:
    """The built-in problem, with AlpaServe's search done here as the peer."""
    problem = example_problem()
    begin = time.process_time()
    plan = make_plan(problem, "alpaserve", rule="shortest-queue", max_batch=1)
    seconds = time.process_time() - begin
    evals = make_draws(problem.workload, len(problem.models), 3, seed=7)[1:]
    scores = [simulate(problem, plan, draw, "shortest-queue", 1).attainment for draw in evals]
    peer = PeerPlan("mp-search", plan, scores, statistics.mean(scores), seconds)
    return Case("tiny", problem, evals, [peer], {})


if __name__ == "__main__":
    main()
