"""Clockwork++: planned anew for every window, clocks kept, swaps free."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from placement.errors import InputError
from placement.planner import make_plan
from placement.problem import Slo
from placement.search.bound import upper_bound
from placement.search.clockwork import clockwork
from placement.simulate import simulate
from tests.placement.small import small_problem
from tests.placement.worlds import MIB, World, node, shape, worlds


def one_device_world(arrivals, latency=0.25, slo=0.5):
    """Two models, one device, room for one of them."""
    return World(
        nodes=[node(1, memory=MIB)],
        profiles={"p": {"shapes": [shape({1: [latency]})]}},
        models=[{"name": name, "profile": "p", "slo": slo} for name in "ab"],
        groups=[],
        arrivals=arrivals,
    )


def test_each_window_has_the_models_it_needs():
    problem = one_device_world([(t, 0) for t in range(10)] + [(10 + t, 1) for t in range(10)]).problem
    swapped = clockwork(problem, window_s=10)
    assert swapped.met.all()
    assert [window.holds.tolist() for window in swapped.windows] == [[[True, False]], [[False, True]]]
    kept = simulate(problem, make_plan(problem, "replication"), rule="shortest-queue")
    assert kept.attainment == 0.5


def test_clocks_carry_over_from_window_to_window():
    """The first still runs when the second comes, in the next window; the third finds the device free."""
    world = one_device_world([(9.0, 0), (10.5, 1), (20.0, 1)], latency=10.0, slo=10.25)
    assert clockwork(world.problem, window_s=10).met.tolist() == [True, False, True]


def test_windows_without_requests_are_skipped():
    swapped = clockwork(one_device_world([(0.0, 0), (100.0, 1), (100.0, 0)]).problem, window_s=10)
    assert swapped.met.tolist() == [True, False, True]
    assert len(swapped.windows) == 2
    np.testing.assert_array_equal(swapped.model_attainment, [1.0, 0.0])


def test_one_window_is_selective_replication():
    problem = small_problem(devices=2)
    kept = simulate(problem, make_plan(problem, "replication"), rule="shortest-queue")
    np.testing.assert_array_equal(clockwork(problem, window_s=1e6).met, kept.met)


@settings(max_examples=25, deadline=None)
@given(worlds())
def test_no_more_is_served_than_the_devices_have_time_for(world):
    swapped = clockwork(world.problem, window_s=0.25)
    assert len(swapped.met) == len(world.workload)
    assert swapped.attainment <= upper_bound(world.problem, max_batch=1) + 1e-12


@pytest.mark.parametrize("window_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_window_that_is_none_is_refused(window_s):
    with pytest.raises(InputError, match="window"):
        clockwork(small_problem(), window_s=window_s)


def test_generating_models_are_refused():
    problem = small_problem()
    chat = replace(problem.models[0], slo=Slo(ttft=1.0, tpot=0.1))
    with pytest.raises(InputError, match="'m0' generates"):
        clockwork(replace(problem, models=(chat, *problem.models[1:])))
