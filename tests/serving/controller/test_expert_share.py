"""What of a step waits for the device with most to do: by sizes, and by a profile."""

import pytest

from placement.costs.transformer import TransformerConfig
from placement.profile import Generation, ShapeProfile, StepCost
from placement.units import Bytes
from serving.controller.expert_share import LEAST, STEP_TOKENS, expert_share

SIZES = TransformerConfig(
    architecture="decoder",
    layers=2,
    hidden=64,
    heads=4,
    kv_heads=4,
    ffn=128,
    gated_ffn=True,
    vocabulary=100,
    experts=8,
    top_k=2,
)
COMPUTED = 2 * 3 * 64 * 128 / (2 * 3 * 64 * 128 + 4 * 64 * 64)


def share(*stages):
    costs = Generation(stages, (512.0,) * len(stages))
    return expert_share(SIZES, ShapeProfile(2, len(stages), (Bytes(1),) * len(stages), generation=costs))


def test_without_costs_of_steps_it_is_the_share_of_weights_a_token_visits():
    assert expert_share(SIZES, None) == pytest.approx(COMPUTED)
    assert expert_share(SIZES, ShapeProfile(1, 1, (Bytes(1),), {1: (0.1,)})) == pytest.approx(COMPUTED)


def test_a_profile_says_what_reading_and_computing_experts_takes_of_a_step():
    computing = StepCost(fixed=0.01, prefill_token=0.01 / STEP_TOKENS)
    assert share(computing) == pytest.approx(COMPUTED / 2)
    assert share(StepCost(fixed=0.01, weights=0.01)) == pytest.approx(COMPUTED / 2)
    reading = StepCost(fixed=0.01, weights=0.01, experts=0.02, expert_share=0.25)
    assert share(reading) == pytest.approx(0.5)
    assert share(computing, reading) == pytest.approx((0.01 * COMPUTED + 0.02) / 0.06)
    assert share(StepCost(fixed=0.02)) == LEAST
