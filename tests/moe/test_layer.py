"""The expert layer in torch against every choice of every token computed on its own; and the counter of routes."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from moe.counter import MOST_HELD, MOST_STEPS, STEP_TOKENS, RouteCounter
from moe.experts import Experts
from moe.gate import Gate, route
from moe.layer import ExpertLayer, SharedExpert
from moe.steps import activate, combine, multiply, one_by_one, sort_places
from tests.moe.worlds import answer, make_experts, plain_sum


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**20),
    st.integers(0, 70),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["silu", "gelu", "gelu_tanh"]),
)
def test_any_batch_is_the_plain_sum(seed, tokens, top_k, gated, activation):
    """Choices may be elsewhere and slots without tokens; the number of rows says which way they are multiplied."""
    random = torch.Generator().manual_seed(seed)
    experts = make_experts(5, 12, 8, gated, activation, random)
    x = torch.randn(tokens, 12, generator=random)
    routes = route(torch.randn(tokens, 5, generator=random), Gate(top_k))
    elsewhere = torch.rand(tokens, top_k, generator=random) < 0.3
    places = torch.where(elsewhere, -1, routes.experts)
    with torch.no_grad():
        expected = plain_sum(experts, x, places, routes.weights)
        torch.testing.assert_close(experts(x, places, routes.weights), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_grouped_and_one_by_one_agree_in_half_precision(dtype):
    torch.manual_seed(0)
    weight = torch.randn(4, 24, 16).to(dtype)
    x = torch.randn(40, 16).to(dtype)
    routes = route(torch.randn(40, 4), Gate(2))
    tokens, ends, rows = sort_places(routes.experts, 4)
    both = multiply(x, tokens, ends, weight), one_by_one(x[tokens], ends, weight)
    torch.testing.assert_close(*both, atol=2e-2, rtol=2e-2)
    assert combine(both[0], rows, routes.weights).dtype == dtype


def test_int8_weights_have_scales():
    torch.manual_seed(0)
    weight, scale = torch.randint(-127, 127, (3, 8, 4), dtype=torch.int8), torch.rand(3, 8)
    x, ends = torch.randn(80, 4), torch.tensor([30, 30, 80], dtype=torch.int32)
    found = multiply(x, None, ends, weight, scale)
    torch.testing.assert_close(found, multiply(x, None, ends, weight * scale[:, :, None]), atol=1e-4, rtol=1e-4)


def test_sorting_keeps_the_order_of_tokens_and_leaves_out_what_is_elsewhere():
    tokens, ends, rows = sort_places(torch.tensor([[2, 0], [-1, 2], [0, 1]]), 4)
    assert ends.tolist() == [2, 3, 5, 5]
    assert tokens[:5].tolist() == [0, 2, 2, 0, 1]
    assert rows.tolist() == [[3, 0], [-1, 4], [1, 2]]


@pytest.mark.parametrize("tokens", [3, 64])
def test_everything_learns(tokens):
    """Of both ways to compute."""
    torch.manual_seed(0)
    layer = ExpertLayer(nn.Linear(16, 4, bias=False), Gate(2), make_experts(4, 16, 8), nn.Linear(16, 16))
    counter = layer.counter = RouteCounter(4)
    layer(torch.randn(tokens, 16)).square().sum().backward()
    assert all(bool(parameter.grad.abs().sum() > 0) for parameter in layer.parameters())
    asked = counter.take() > 0
    for weight in (layer.experts.up, layer.experts.down):
        assert (weight.grad.flatten(1).abs().sum(dim=1) > 0).tolist() == asked.tolist()


def test_shared_experts_and_the_bias_of_the_choice():
    torch.manual_seed(1)
    experts, router, shared, gate = make_experts(4, 16, 8), nn.Linear(16, 4), nn.Linear(16, 16), nn.Linear(16, 1)
    layer = ExpertLayer(router, Gate(2, "sigmoid", scale=2.5), experts, SharedExpert(shared, gate))
    layer.bias = torch.tensor([0.0, 9.0, 0.0, 9.0])
    x = torch.randn(6, 16)
    with torch.no_grad():
        likes = router(x).sigmoid()[:, [1, 3]]
        weights = 2.5 * likes / likes.sum(dim=1, keepdim=True)
        places = torch.tensor([[1, 3]]).expand(6, 2)
        expected = plain_sum(experts, x, places, weights) + shared(x) * gate(x).sigmoid()
        torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)
        layer.shared = SharedExpert(shared)
        torch.testing.assert_close(layer(x), plain_sum(experts, x, places, weights) + shared(x), atol=1e-5, rtol=1e-5)


def test_a_swiglu_expert_by_hand():
    experts = Experts(1, 2, 1)
    with torch.no_grad():
        experts.up.copy_(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
        experts.down.copy_(torch.tensor([[[2.0], [3.0]]]))
        y = experts(torch.tensor([[1.0, 5.0]]), torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1))
    inside = F.silu(torch.tensor(1.0)) * 5.0
    torch.testing.assert_close(y, torch.tensor([[2.0, 3.0]]) * inside)
    torch.testing.assert_close(answer(experts, 0, torch.tensor([1.0, 5.0])), y[0])
    assert activate(torch.tensor(0.0), "gelu").item() == 0.0


def test_a_counter_counts_keeps_routes_and_forgets_what_was_taken():
    counter = RouteCounter(4, keep_routes=True)
    assert counter.take_routes().numel() == 0
    first, second = torch.tensor([[0, 3], [3, 1]]), torch.tensor([[3, 0]])
    counter.note(first)
    counter.note(second)
    assert counter.take().tolist() == [2, 1, 0, 3]
    assert counter.take_routes().tolist() == torch.cat((first, second)).tolist()
    assert counter.take().tolist() == [0, 0, 0, 0]
    with pytest.raises(AssertionError, match="keeps no routes"):
        RouteCounter(4).take_routes()


def test_a_counter_tells_the_last_large_steps_one_by_one():
    """Whether they were counted at once or wait; steps of few tokens are in the sum alone."""
    counter, torch_random = RouteCounter(4), torch.Generator().manual_seed(0)
    sizes = [STEP_TOKENS, 3, STEP_TOKENS - 1, 2 * STEP_TOKENS] * MOST_STEPS + [MOST_HELD, 1, STEP_TOKENS]
    steps = [torch.randint(4, (size, 2), generator=torch_random) for size in sizes]
    for step in steps:
        counter.note(step)
    large = [torch.bincount(step.flatten(), minlength=4) for step in steps if len(step) >= STEP_TOKENS]
    assert counter.take_steps().tolist() == torch.stack(large[-MOST_STEPS:]).tolist()
    assert counter.take().sum() == 2 * sum(sizes)
    assert counter.take_steps().shape == (0, 4)
