"""The planner as its users call it: same seed same plan, better than the baselines, honest about what cannot be."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from placement.cluster import Cluster, Node
from placement.errors import InfeasibleError
from placement.plan import Plan, check_plan
from placement.planner import POLICIES, make_plan
from placement.problem import Model, Problem, Slo
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.search.draws import make_draws
from placement.search.effort import Effort
from placement.simulate import simulate
from placement.units import Bytes
from placement.workload import Workload
from tests.placement.problems import GB, make_problem, profile

BURSTY = make_problem(8, [Node("n0", 8, Bytes(3 * GB))], rate=4.0, cv=4.0, slo=0.5)


def plan_of(problem: Problem, steps: int = 60, **options: object) -> Plan:
    return make_plan(problem, effort=Effort(steps=steps), **options)  # type: ignore[arg-type]


def groups_of(plan: Plan) -> bytes:
    return msgspec.json.encode(plan.groups)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_makes_a_valid_plan_and_tells_what_it_expects(policy: str) -> None:
    plan = plan_of(BURSTY, policy=policy)
    check_plan(plan, BURSTY, policy)
    claims = plan.planner
    assert claims["policy"] == policy
    assert 0 < claims["attainment"] <= claims["upper_bound"] <= 1
    assert claims["attainment"] == pytest.approx(simulate(BURSTY, plan).attainment)


def test_the_same_seed_and_steps_give_the_same_plan() -> None:
    assert groups_of(plan_of(BURSTY, seed=5)) == groups_of(plan_of(BURSTY, seed=5))


def test_ours_beats_the_baselines_on_traffic_it_has_not_seen() -> None:
    fresh = make_draws(BURSTY.workload, len(BURSTY.models), 5, seed=99)[1:]

    def score(policy: str) -> float:
        plan = plan_of(BURSTY, steps=150, policy=policy)
        return float(np.mean([simulate(BURSTY, plan, draw).attainment for draw in fresh]))

    ours = score("penstock")
    assert ours > score("replication")
    assert ours >= score("alpaserve") - 0.002
    assert ours >= score("round-robin") - 0.002


@pytest.mark.alone
def test_a_budget_is_kept() -> None:
    plan_of(BURSTY, steps=1)  # compiles
    plan = make_plan(BURSTY, effort=Effort(seconds=0.5))
    assert plan.planner["seconds"] < 5
    check_plan(plan, BURSTY, "budget")


def test_moving_costs_keep_the_previous_plan() -> None:
    before = plan_of(BURSTY, steps=30)
    other = replace(BURSTY, workload=make_draws(BURSTY.workload, 8, 2, seed=1)[1])
    dear = plan_of(other, previous=before, move_cost=1.0)
    assert {frozenset(group.models) for group in dear.groups} == {frozenset(group.models) for group in before.groups}


def test_groups_stay_on_the_devices_of_the_previous_plan() -> None:
    before = plan_of(BURSTY, steps=30)
    names = [device.name for device in BURSTY.cluster.devices]
    mirror = dict(zip(names, reversed(names), strict=True))
    moved = Plan(
        tuple(
            msgspec.structs.replace(group, devices=tuple(sorted(mirror[name] for name in group.devices)))
            for group in before.groups
        )
    )
    again = plan_of(BURSTY, previous=moved, move_cost=1.0, steps=30)
    assert {(g.devices, g.models) for g in again.groups} == {(g.devices, g.models) for g in moved.groups}


def test_a_previous_plan_may_name_what_is_gone() -> None:
    before = plan_of(BURSTY, steps=30)
    smaller = replace(BURSTY.with_devices(4), models=BURSTY.models[:7])
    keep = BURSTY.workload.model < 7
    smaller = replace(smaller, workload=BURSTY.workload.select(keep))
    check_plan(plan_of(smaller, previous=before, steps=30), smaller, "after a loss")


def test_a_model_that_fits_nowhere_is_named() -> None:
    huge = Model("huge", profile(0.1, 100 * GB), Slo(1.0))
    with pytest.raises(InfeasibleError, match=r"model 'huge': its smallest shard needs 25000000000 bytes"):
        plan_of(replace(BURSTY, models=(*BURSTY.models, huge)))
    wide = Model("wide", profile(0.1, GB, shapes=((1, 64),)), Slo(1.0))
    with pytest.raises(InfeasibleError, match=r"model 'wide': none of its profile's shapes fits 8 devices"):
        plan_of(replace(BURSTY, models=(*BURSTY.models, wide)))


def test_both_device_kinds_are_used() -> None:
    nodes = (Node("a", 4, Bytes(4 * GB), kind="v100"), Node("b", 4, Bytes(4 * GB), kind="t4"))
    problem = make_problem(6, nodes, rate=6.0, slo=0.5)
    used = {name.split("/")[0] for group in plan_of(problem).groups for name in group.devices}
    assert used == {"a", "b"}


def test_judged_by_target_no_model_is_starved() -> None:
    """Memory for three of four models on a device; the rare one must get a place all the same."""
    problem = make_problem(4, [Node("n0", 2, Bytes(2 * GB))], rate=3.0, objective="target")
    rare = problem.workload.model == 3
    keep = ~rare | (np.cumsum(rare) % 20 == 1)
    plan = plan_of(replace(problem, workload=problem.workload.select(keep)))
    assert any("m3" in group.models for group in plan.groups)


def test_rare_models_are_parked_where_host_memory_allows() -> None:
    """Eight models of which two fit on the devices at a time: without parking six have no home."""
    node = Node("n0", 1, Bytes(2 * GB), host_memory=Bytes(100 * GB), load_bandwidth=20e9)
    problem = make_problem(8, [node], rate=0.2, cv=1.0, slo=1.0)
    plan = plan_of(problem)
    without = replace(problem, cluster=Cluster((msgspec.structs.replace(node, host_memory=Bytes(0)),)))
    assert plan.groups[0].parked
    assert plan.planner["attainment"] > plan_of(without).planner["attainment"] + 0.3
    check_plan(plan, problem, "parked")


def test_generating_and_one_pass_models_are_planned_together() -> None:
    shapes = tuple(
        ShapeProfile(
            tp=1,
            pp=pp,
            stage_memory=(Bytes(GB // pp),) * pp,
            generation=Generation(
                (StepCost(fixed=0.001, weights=0.01 / pp, prefill_token=2e-5 / pp, sequence=1e-4 / pp),) * pp,
                (100_000.0 / pp,) * pp,
            ),
        )
        for pp in (1, 2)
    )
    base = make_problem(3, [Node("n0", 4, Bytes(4 * GB))], rate=3.0, duration=30.0, objective="target")
    chat = Model("m2", Profile(shapes), Slo(ttft=0.5, tpot=0.05))
    tokens = np.where(base.workload.model == 2, 200, 0).astype(np.int32)
    workload = Workload(base.workload.arrival, base.workload.model, tokens, tokens // 4)
    problem = replace(base, models=(*base.models[:2], chat), workload=workload)
    for policy in POLICIES:
        plan = plan_of(problem, policy=policy, steps=40)
        check_plan(plan, problem, policy)
        homes = [group for group in plan.groups if "m2" in group.models]
        assert homes
        assert all(group.kv_bytes["m2"] > 0 for group in homes)
        assert plan.planner["attainment"] > 0.9
