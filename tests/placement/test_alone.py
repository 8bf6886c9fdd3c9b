"""Models that share a group with nobody: engines of others keep no stage clock together."""

import numpy as np
import pytest

from placement.cli.views import plan_text
from placement.cluster import Cluster, Node
from placement.errors import InputError
from placement.plan import Group, Plan, check_plan
from placement.planner import make_plan
from placement.problem import Model, Problem, Slo
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.search.effort import Effort
from placement.simulate import simulate
from placement.units import Bytes
from placement.workload import check_workload

GIGABYTE = 2**30


def chat(name, alone):
    generation = Generation((StepCost(fixed=0.01),), (1024.0,))
    profile = Profile((ShapeProfile(1, 1, (Bytes(GIGABYTE),), generation=generation, wake=0.5),))
    return Model(name, profile, Slo(ttft=5.0, tpot=1.0), alone=alone)


def problem(devices=3, host=0, models=None, runs=1, seconds=30):
    """Requests come evenly, for each model in turn so many."""
    models = models or (chat("theirs", True), chat("ours", False), chat("own", False))
    count = 60
    columns = {
        "arrival": np.linspace(0, seconds, count),
        "model": (np.arange(count, dtype=np.int32) // runs) % len(models),
        "prompt_tokens": np.full(count, 16, np.int32),
        "output_tokens": np.full(count, 8, np.int32),
    }
    node = Node("n", devices, Bytes(16 * GIGABYTE), host_memory=Bytes(host))
    return Problem(Cluster((node,)), models, check_workload(columns, len(models), "workload"))


def test_the_planner_gives_it_groups_of_its_own_with_all_their_memory():
    plan = make_plan(problem(), effort=Effort(steps=30))
    holders = [group for group in plan.groups if "theirs" in group.models]
    assert holders
    for group in holders:
        assert group.models == ("theirs",)
        assert group.kv_bytes["theirs"] > 14 * GIGABYTE
    assert any(len(group.models) == 2 for group in plan.groups)


def test_a_plan_that_sets_another_beside_it_is_refused():
    group = Group(("n/0",), 1, 1, ("theirs", "ours"), {"theirs": 2**20, "ours": 2**20})
    with pytest.raises(InputError, match="shares a group with no other model"):
        check_plan(Plan((group,)), problem(), "plan")


def test_it_takes_turns_with_those_parked_behind_it():
    """Each may have the whole device while it is awake; a parked one that generates has its cache in the plan."""
    cache = 14 * GIGABYTE
    group = Group(("n/0",), 1, 1, ("theirs",), {"theirs": cache, "ours": cache}, {}, ("ours",))
    check_plan(Plan((group,)), problem(host=8 * GIGABYTE), "plan")
    with pytest.raises(InputError, match="no kv_bytes for 'ours'"):
        check_plan(Plan((Group(("n/0",), 1, 1, ("theirs",), {"theirs": cache}, {}, ("ours",)),)), problem(), "plan")


def two_on_one_device(**more):
    return problem(1, models=(chat("one", True), chat("two", True)), **more)


def test_the_planner_lets_two_take_turns_on_one_device_and_says_how_long_waking_takes():
    asked = two_on_one_device(host=8 * GIGABYTE, seconds=120)
    plan = make_plan(asked, effort=Effort(steps=30))
    (group,) = plan.groups
    assert len(group.models) == len(group.parked) == 1
    assert min(group.kv_bytes["one"], group.kv_bytes["two"]) > 14 * GIGABYTE
    assert plan.planner["wake_s"] == {"one": 0.5, "two": 0.5}
    assert plan.planner["attainment"] == 1.0
    assert f"{group.parked[0]} (wakes in 0.5 s)" in plan_text(asked, plan, simulate(asked, plan), 0.0)
    without = make_plan(two_on_one_device(seconds=120), effort=Effort(steps=30))
    assert without.planner["attainment"] <= 0.55
    assert "wake_s" not in without.planner


def test_who_comes_first_is_served_first_after_those_who_run_and_the_waking():
    """A step takes 10 ms, an answer 8 of them, waking half a second."""
    asked = two_on_one_device(host=8 * GIGABYTE)
    cache = 14 * GIGABYTE
    group = Group(("n/0",), 1, 1, ("one",), {"one": cache, "two": cache}, {}, ("two",))
    columns = {
        "arrival": np.array([0.0, 0.005, 0.006, 0.007]),
        "model": np.array([0, 1, 0, 1], np.int32),
        "prompt_tokens": np.full(4, 16, np.int32),
        "output_tokens": np.full(4, 8, np.int32),
    }
    outcome = simulate(asked, Plan((group,)), check_workload(columns, 2, "workload"))
    np.testing.assert_allclose(outcome.first, [0.01, 0.08 + 0.51, 0.66 + 0.51, 1.24 + 0.51], atol=1e-9)


def test_waking_that_takes_too_long_is_not_planned():
    generation = Generation((StepCost(fixed=0.01),), (1024.0,))
    shape = ShapeProfile(1, 1, (Bytes(GIGABYTE),), generation=generation, wake=20.0)
    slow = tuple(Model(name, Profile((shape,)), Slo(ttft=5.0, tpot=1.0), alone=True) for name in ("one", "two"))
    plan = make_plan(problem(1, host=8 * GIGABYTE, models=slow), effort=Effort(steps=30))
    assert not any(group.parked for group in plan.groups)
