"""Models that share a group with nobody: engines of others keep no stage clock together."""

import numpy as np
import pytest

from placement.cluster import Cluster, Node
from placement.errors import InputError
from placement.plan import Group, Plan, check_plan
from placement.planner import make_plan
from placement.problem import Model, Problem, Slo
from placement.profile import Generation, Profile, ShapeProfile, StepCost
from placement.search.effort import Effort
from placement.units import Bytes
from placement.workload import check_workload

GIGABYTE = 2**30


def chat(name, alone):
    generation = Generation((StepCost(fixed=0.01),), (1024.0,))
    profile = Profile((ShapeProfile(1, 1, (Bytes(GIGABYTE),), generation=generation, wake=0.5),))
    return Model(name, profile, Slo(ttft=5.0, tpot=1.0), alone=alone)


def problem(devices=3, host=0):
    models = (chat("theirs", True), chat("ours", False), chat("own", False))
    count = 60
    columns = {
        "arrival": np.linspace(0, 30, count),
        "model": np.arange(count, dtype=np.int32) % 3,
        "prompt_tokens": np.full(count, 16, np.int32),
        "output_tokens": np.full(count, 8, np.int32),
    }
    node = Node("n", devices, Bytes(16 * GIGABYTE), host_memory=Bytes(host))
    return Problem(Cluster((node,)), models, check_workload(columns, 3, "workload"))


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
