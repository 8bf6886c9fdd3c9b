"""Plans of which something can be lent."""

from placement.cluster import Node
from placement.planner import LENDABLE_LOSS, lendable_plan, make_plan
from placement.search.effort import Effort
from placement.simulate import simulate
from placement.units import Bytes
from tests.placement.problems import GB, make_problem


def planned(problem):
    effort = Effort(steps=40)
    plan = make_plan(problem, effort=effort)
    return plan, lendable_plan(problem, plan, effort)


def test_where_all_is_served_anyway_a_plan_with_a_ladder_takes_its_place():
    problem = make_problem(2, (Node("n0", 2, Bytes(4 * GB)),), rate=0.5, cv=1.0)
    plan, lends = planned(problem)
    assert lends.ladder
    assert {model for group in lends.groups for model in group.models} == {"m0", "m1"}
    assert simulate(problem, lends).attainment >= simulate(problem, plan).attainment - LENDABLE_LOSS


def test_where_a_device_holds_half_of_the_models_nothing_can_be_spared():
    problem = make_problem(4, (Node("n0", 2, Bytes(2 * GB)),), rate=0.5, cv=1.0)
    plan, lends = planned(problem)
    assert lends == plan
    assert not lends.ladder


def test_a_plan_that_has_a_ladder_stays():
    problem = make_problem(2, (Node("n0", 4, Bytes(4 * GB)),), rate=4.0, cv=2.0)
    plan, lends = planned(problem)
    assert not plan.ladder or lends is plan
