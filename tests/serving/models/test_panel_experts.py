"""Packed experts on a CPU core compute what the torch layer does, and a token's result depends on the token alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.experts import Experts
from moe.gate import Gate, route
from serving.models.expert_forms import prepare_experts
from serving.models.panel_experts import MOST_ROWS


def make_world(tokens, top_k, gated, activation, seed, hidden=20, ffn=12):
    random = torch.Generator().manual_seed(seed)
    experts = Experts(5, hidden, ffn, gated, activation)
    with torch.no_grad():
        for weight in (experts.up, experts.down):
            weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=random)
    routes = route(torch.randn(tokens, 5, generator=random), Gate(top_k))
    places = torch.where(torch.rand(tokens, top_k, generator=random) < 0.2, -1, routes.experts)
    return experts, torch.randn(tokens, hidden, generator=random), places, routes.weights


WORLDS = (
    st.integers(0, 40),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["silu", "gelu", "gelu_tanh"]),
    st.integers(0, 2**20),
)


@settings(deadline=None, max_examples=40)
@given(*WORLDS)
def test_any_batch_is_the_torch_layers(tokens, top_k, gated, activation, seed):
    """Sizes that do not fill a panel."""
    experts, x, places, weights = make_world(tokens, top_k, gated, activation, seed)
    with torch.no_grad():
        expected = experts(x, places, weights)
        torch.testing.assert_close(prepare_experts(experts, "fp32")(x, places, weights), expected, atol=1e-5, rtol=1e-5)


def test_int8_weights_are_those_of_the_rounded_matrices():
    experts, x, places, weights = make_world(30, 2, True, "silu", 0)
    packed = prepare_experts(experts, "int8")
    with torch.no_grad():
        for matrix in (experts.up, experts.down):
            scale = matrix.abs().amax(dim=2, keepdim=True) / 127
            matrix.copy_((matrix / scale).round() * scale)
        torch.testing.assert_close(packed(x, places, weights), experts(x, places, weights), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_token_gets_the_same_bits_alone_and_in_a_crowd(precision):
    tokens = 2 * MOST_ROWS + 7
    experts, x, places, weights = make_world(tokens, 2, True, "silu", 3, hidden=32, ffn=48)
    places = places.where(places < 0, torch.arange(2))  # two experts with more rows than are computed at a time
    packed = prepare_experts(experts, precision)
    with torch.no_grad():
        together = packed(x, places, weights)
        torch.testing.assert_close(
            together, experts(x, places, weights), atol=0.1 if precision == "int8" else 1e-5, rtol=0
        )
        for token in (0, 1, MOST_ROWS, tokens - 1):
            row = slice(token, token + 1)
            assert torch.equal(packed(x[row], places[row], weights[row]), together[row])


def test_a_digest_tells_experts_apart():
    experts, *_ = make_world(1, 1, True, "silu", 0)
    with torch.no_grad():
        experts.up[1], experts.down[1] = experts.up[0], experts.down[0]
    first, same, other, *_ = (expert.digest for expert in prepare_experts(experts, "fp32").held)
    assert first == same != other
    with torch.no_grad():
        experts.down[1, 0, 0] += 1e-6
    assert prepare_experts(experts, "fp32").held[1].digest != first
