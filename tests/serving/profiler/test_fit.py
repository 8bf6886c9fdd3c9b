"""Costs from measured steps."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.profile import StepCost
from serving.profiler.fit import FitError, fit_step_cost, relative_errors, summarise
from serving.profiler.points import Room, choose_steps, corner_steps

ROOM = Room(2048, 64 * 2048)
FITTED = [step.load for step in corner_steps(ROOM) + choose_steps(48, ROOM, seed=1)]
HELD_OUT = [step.load for step in choose_steps(24, ROOM, seed=2)]


def costs():
    """From a GPU's to a slow core's: each part somewhere where it matters."""

    def build(scale, fixed, weights, sequence, context, cached):
        return StepCost(
            fixed=scale * fixed,
            weights=scale * weights,
            prefill_token=scale * 0.02,
            prefill_context=scale * context * 1e-5,
            sequence=scale * sequence,
            cached_token=scale * cached * 1e-5,
        )

    share = st.floats(0.0, 1.0)
    return st.builds(build, st.sampled_from([1e-5, 1e-3]), st.floats(0.1, 3.0), share, share, share, share)


def times(cost, loads, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    return [cost.seconds(*load) * float(np.exp(noise * random.standard_normal())) for load in loads]


@settings(max_examples=30, deadline=None)
@given(costs())
def test_costs_are_found_again(cost):
    found = fit_step_cost(FITTED, times(cost, FITTED))
    error = summarise(relative_errors(found, HELD_OUT, times(cost, HELD_OUT)))
    assert error.mean < 0.02
    assert error.p95 < 0.06


@settings(max_examples=30, deadline=None)
@given(costs(), st.floats(0.5, 3.0), st.sampled_from([1 / 32, 1 / 8, 1 / 4]))
def test_what_experts_cost_is_found_again(dense, experts, share):
    cost = msgspec.structs.replace(dense, experts=experts * dense.fixed, expert_share=share)
    found = fit_step_cost(FITTED, times(cost, FITTED), share)
    error = summarise(relative_errors(found, HELD_OUT, times(cost, HELD_OUT)))
    assert error.mean < 0.02
    assert error.p95 < 0.06
    assert found.expert_share == share
    assert found.seconds(0, 1, 0, 16) == pytest.approx(cost.seconds(0, 1, 0, 16), rel=0.05)


def test_without_the_experts_a_lone_sequence_would_be_taken_for_a_crowd():
    cost = StepCost(fixed=1e-3, weights=5e-4, prefill_token=1e-4, sequence=1e-4, experts=1e-2, expert_share=0.1)
    one = (0, 1, 0, 16)
    blind, found = (fit_step_cost(FITTED, times(cost, FITTED), share) for share in (0.0, 0.1))
    assert blind.seconds(*one) > 1.4 * cost.seconds(*one)
    assert found.seconds(*one) == pytest.approx(cost.seconds(*one), rel=0.02)
    assert found.experts == pytest.approx(cost.experts, rel=0.05)


@settings(max_examples=10, deadline=None)
@given(costs(), st.integers(0, 100))
def test_noise_does_not_lead_far_astray(cost, seed):
    found = fit_step_cost(FITTED, times(cost, FITTED, 0.05, seed))
    error = summarise(relative_errors(found, HELD_OUT, times(cost, HELD_OUT)))
    assert error.mean < 0.05


def test_a_few_disturbed_steps_do_not_bend_the_rest():
    cost = StepCost(
        fixed=1e-3, weights=2e-3, prefill_token=3e-5, sequence=5e-5, prefill_context=5e-8, cached_token=2e-7
    )
    disturbed = times(cost, FITTED)
    for place in (3, 17, 31, 44):
        disturbed[place] *= 3
    found = fit_step_cost(FITTED, disturbed)
    assert summarise(relative_errors(found, HELD_OUT, times(cost, HELD_OUT))).mean < 0.05


@given(st.lists(st.floats(1e-6, 1.0), min_size=7, max_size=7))
@settings(max_examples=30, deadline=None)
def test_whatever_was_measured_gives_valid_costs(seconds):
    loads = [step.load for step in corner_steps(ROOM)]
    found = fit_step_cost(loads, seconds)
    assert all(getattr(found, field) >= 0 for field in found.__struct_fields__)
    assert found.seconds(1, 0, 0, 0) > 0


def test_errors_are_shares_of_the_time():
    cost = StepCost(fixed=1.0)
    errors = relative_errors(cost, [(0, 1, 0, 1)] * 4, [1.0, 2.0, 0.5, 1.0])
    assert errors.tolist() == pytest.approx([0, 0.5, 1.0, 0])
    error = summarise(errors)
    assert error.mean == pytest.approx(0.375)
    assert error.steps == 4
    assert not error.is_within_goal
    assert FitError(0.08, 0.15, 3).is_within_goal
