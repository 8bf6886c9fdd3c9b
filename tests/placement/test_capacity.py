"""What rungs hold: the planned traffic, never more when more is drained, and linear in demand."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.capacity import HALVINGS, LEAST, MOST, SLACK, Rung, find_rungs, rungs_of, usual_requests, with_rungs
from placement.cluster import Node
from placement.errors import InputError
from placement.plan import Group, Plan, check_plan
from placement.problem import Problem
from placement.simulate import simulate
from placement.units import Bytes
from tests.placement.problems import GB, make_problem

RESOLUTION = (MOST / LEAST) ** (0.5**HALVINGS)
"""Between what is found and what is held, as a factor: how finely it is searched."""


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(3, [Node("n0", 6, Bytes(4 * GB))], rate=4.0, cv=1.0, slo=1.0)


@pytest.fixture(scope="module")
def plan(problem: Problem) -> Plan:
    """Every model on every device; all but two can be drained."""
    names = tuple(model.name for model in problem.models)
    groups = tuple(Group(devices=(device.name,), tp=1, pp=1, models=names) for device in problem.cluster.devices)
    made = Plan(groups, ladder=tuple(tuple(range(count)) for count in range(1, 5)))
    check_plan(made, problem, "made")
    return made


@pytest.fixture(scope="module")
def rungs(problem: Problem, plan: Plan) -> tuple[Rung, ...]:
    return find_rungs(problem, plan)


def planned_work_per_s(problem: Problem) -> float:
    counts = problem.workload.counts(len(problem.models))
    each = [usual.work_s for usual in usual_requests(problem).values()]
    return float(counts @ np.array(each)) / problem.workload.duration


def test_a_whole_plan_that_attains_its_traffic_holds_it(problem: Problem, plan: Plan, rungs: tuple[Rung, ...]) -> None:
    target = min(model.target for model in problem.models)
    assert simulate(problem, plan).attainment >= target - SLACK
    assert rungs[0].drained == ()
    assert rungs[0].work_per_s >= planned_work_per_s(problem) / RESOLUTION


def test_draining_never_raises_what_is_held(plan: Plan, rungs: tuple[Rung, ...]) -> None:
    assert len(rungs) == len(plan.ladder) + 1 > 2
    assert [rung.drained for rung in rungs[1:]] == list(plan.ladder)
    for whole, less in pairwise(rungs):
        assert set(whole.drained) < set(less.drained)
        assert less.work_per_s <= whole.work_per_s * RESOLUTION
        assert all(less.models[name] <= whole.models[name] * RESOLUTION for name in whole.models)


@given(
    st.floats(0.1, 100),
    st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)),
    st.tuples(st.floats(0, 100), st.floats(0, 100)),
    st.floats(0.1, 10),
)
def test_load_is_linear_and_monotone_in_demand(
    mix: float, alone: tuple[float, float], work: tuple[float, float], factor: float
) -> None:
    rung = Rung((), mix, {"a": alone[0], "b": alone[1]})
    demand = {"a": work[0], "b": work[1]}
    load = rung.load(demand)
    assert load == pytest.approx(max(sum(work) / mix, work[0] / alone[0], work[1] / alone[1]))
    assert rung.load({name: factor * value for name, value in demand.items()}) == pytest.approx(factor * load)
    assert rung.load(demand | {"a": work[0] + 1}) >= load


def test_a_rung_that_holds_nothing_is_full_at_any_demand() -> None:
    assert Rung((0,), 0.0).load({"a": 0.1}) == np.inf
    assert Rung((0,), 0.0).load({"a": 0.0}) == 0.0
    assert Rung((0,), 1.0, {"a": 0.0, "b": 1.0}).load({"a": 0.1}) == np.inf


def test_a_plan_tells_its_rungs_through_its_file(plan: Plan, rungs: tuple[Rung, ...]) -> None:
    assert rungs_of(plan) == ()
    told = msgspec.json.decode(msgspec.json.encode(with_rungs(plan, rungs)), type=Plan)
    assert rungs_of(told) == rungs
    assert told.groups == plan.groups
    broken = msgspec.structs.replace(plan, planner={"rungs": [{"drained": "x"}]})
    with pytest.raises(InputError, match=r"planner\.rungs"):
        rungs_of(broken)


def test_what_a_request_costs_grows_with_its_tokens(problem: Problem) -> None:
    for usual in usual_requests(problem).values():
        assert usual.work_s > 0
        assert usual.work(10) == usual.work_s  # these models do not generate
