"""The split of a batch: conserves tokens, uses only replicas that exist, and is the linear program's optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from moe.expert_placement import ExpertPlacement
from moe.split import Splitter, balancedness, even_levels

SAME = st.just(1.0)


@st.composite
def worlds(draw, speeds=SAME):
    """A placement of one layer, tokens of its experts, device speeds."""
    devices, experts = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    homes = [
        draw(st.lists(st.integers(0, devices - 1), min_size=1, max_size=devices, unique=True)) for _ in range(experts)
    ]
    lists = [[expert for expert in range(experts) if device in homes[expert]] for device in range(devices)]
    tokens = draw(st.lists(st.integers(0, 200), min_size=experts, max_size=experts))
    speed = draw(st.lists(speeds, min_size=devices, max_size=devices))
    return ExpertPlacement.of_lists([lists]), np.array([tokens]), np.array(speed)


def device_loads(placement, flow):
    return np.array([flow[placement.device == device].sum() for device in range(placement.devices)])


def program(placement, tokens, speed):
    """min T: the tokens of each expert over its slots, each device at most T times its speed."""
    slots = len(placement.device)
    equal = np.zeros((placement.experts, slots + 1))
    for slot, expert in enumerate(placement.expert[0]):
        equal[expert, slot] = 1
    below = np.zeros((placement.devices, slots + 1))
    below[placement.device, np.arange(slots)] = 1
    below[:, -1] = -speed
    cost = np.zeros(slots + 1)
    cost[-1] = 1
    return cost, below, equal, tokens


def least_level(placement, tokens, speed):
    cost, below, equal, need = program(placement, tokens, speed)
    solved = linprog(cost, A_ub=below, b_ub=np.zeros(len(below)), A_eq=equal, b_eq=need, method="highs")
    return float(solved.fun)


def least_whole_level(placement, tokens, speed):
    cost, below, equal, need = program(placement, tokens, speed)
    constraints = [LinearConstraint(below, ub=0), LinearConstraint(equal, lb=need, ub=need)]
    whole = np.append(np.ones(len(cost) - 1), 0)
    return float(milp(cost, constraints=constraints, integrality=whole, bounds=Bounds(0, np.inf)).fun)


@given(worlds(speeds=st.sampled_from([0.5, 1.0, 1.5, 3.0])))
@settings(max_examples=150, deadline=None)
def test_whole_tokens_are_kept_and_go_to_replicas(world):
    placement, tokens, speed = world
    split = Splitter(placement, speed).split(tokens)
    assert (split.tokens >= 0).all()
    for expert in range(placement.experts):
        assert split.tokens[0][placement.expert[0] == expert].sum() == tokens[0, expert]
    assert split.level[0] == pytest.approx((device_loads(placement, split.tokens[0]) / speed).max())


@given(worlds(speeds=st.sampled_from([0.5, 1.0, 1.7, 3.0])))
@settings(max_examples=150, deadline=None)
def test_the_level_is_the_linear_programs(world):
    placement, tokens, speed = world
    assert Splitter(placement, speed).levels(tokens)[0] == pytest.approx(
        least_level(placement, tokens[0], speed), abs=1e-6
    )


@given(worlds())
@settings(max_examples=150, deadline=None)
def test_whole_tokens_on_equal_devices_are_the_program_rounded_up(world):
    placement, tokens, speed = world
    level = Splitter(placement, speed).split(tokens).level[0]
    assert level == math.ceil(least_level(placement, tokens[0], speed) - 1e-6)


@given(worlds(speeds=st.sampled_from([0.5, 1.0, 1.7, 3.0])))
@settings(max_examples=60, deadline=None)
def test_whole_tokens_on_unequal_devices_are_the_whole_programs(world):
    placement, tokens, speed = world
    level = Splitter(placement, speed).split(tokens).level[0]
    assert level == pytest.approx(least_whole_level(placement, tokens[0], speed), abs=1e-6)


@pytest.mark.parametrize(("experts", "devices"), [(64, 8), (256, 32)])
def test_a_large_layer_is_the_linear_programs_too(experts, devices):
    chance = np.random.default_rng(0)
    for _ in range(10):
        homes = [chance.choice(devices, size=1 + min(7, chance.poisson(0.3)), replace=False) for _ in range(experts)]
        lists = [[expert for expert in range(experts) if device in homes[expert]] for device in range(devices)]
        placement = ExpertPlacement.of_lists([lists])
        tokens = (5000 * chance.dirichlet(np.full(experts, 0.3))).astype(np.int64)[None]
        level = Splitter(placement, np.ones(devices)).split(tokens).level[0]
        assert level == math.ceil(least_level(placement, tokens[0], np.ones(devices)) - 1e-6)


def test_one_layer_alone_is_split_as_among_all():
    placement = ExpertPlacement.of_lists([[[0, 1], [0, 2]], [[0, 1], [1, 2]]])
    splitter = Splitter(placement, np.ones(2))
    tokens = np.array([[10, 4, 2], [3, 9, 3]])
    both = splitter.split(tokens)
    assert both.level.tolist() == [8, 8]
    for layer in range(2):
        assert splitter.split_layer(layer, tokens[layer]).tolist() == both.tokens[layer].tolist()


def test_an_even_split_by_hand():
    placement = ExpertPlacement.of_lists([[[0, 1], [0, 2]]])
    load = np.array([[10.0, 4.0, 2.0]])
    level = even_levels(load, placement, np.ones(2))
    assert level.tolist() == [9]
    assert balancedness(load, level, np.ones(2)).tolist() == [8 / 9]


def test_no_load_is_balanced():
    load = np.zeros((1, 3))
    placement = ExpertPlacement.of_lists([[[0, 1], [0, 2]]])
    splitter = Splitter(placement, np.ones(2))
    assert balancedness(load, splitter.levels(load), np.ones(2)).tolist() == [1]
    assert splitter.split(load.astype(np.int64)).tokens.sum() == 0
