"""The expert kernels in Triton's interpreter, against their twins; test_kernels runs this file with TRITON_INTERPRET=1,
which has to be set before anything imports Triton."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from moe import steps
from moe.gate import Gate, route
from moe.kernels import combining, products, sorting
from moe.kernels.experts import TritonExperts
from moe.kernels.report import report
from placement.errors import InputError
from serving.models.expert_forms import quantise_stack as quantise
from tests.moe.worlds import make_experts

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def make_places(tokens, top_k, slots, seed, elsewhere=0.2):
    random = torch.Generator().manual_seed(seed)
    places = torch.rand(tokens, slots, generator=random).argsort(dim=1)[:, :top_k]
    return torch.where(torch.rand(places.shape, generator=random) < elsewhere, -1, places)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 600), st.integers(1, 4), st.integers(4, 9), st.integers(0, 2**20), st.sampled_from([0.0, 0.3, 1.0])
)
def test_any_places_are_sorted_as_by_the_twin(tokens, top_k, slots, seed, elsewhere):
    places = make_places(tokens, top_k, slots, seed, elsewhere)
    expected, found = steps.sort_places(places, slots), sorting.sort_places(places, slots)
    here = int(expected.ends[-1])
    assert torch.equal(found.ends, expected.ends)
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.tokens[:here], expected.tokens[:here])


def assert_product_as_twin(places, slots, hidden, outputs, dtype, seed, **how):
    random = torch.Generator().manual_seed(seed)
    tokens, ends, _ = steps.sort_places(places, slots)
    x = torch.randn(len(places), hidden, generator=random).to(dtype)
    weight = (torch.randn(slots, outputs, hidden, generator=random) * hidden**-0.5).to(dtype)
    expected = steps.multiply(x, tokens, ends, weight, **how)
    found = products.multiply(x, tokens, ends, weight, **how)[: len(expected)]
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 150),
    st.integers(1, 3),
    st.sampled_from([(3, 40, 24), (5, 64, 34), (4, 100, 70)]),
    st.sampled_from(["silu", "gelu", "gelu_tanh", None]),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float16]),
    st.integers(0, 2**20),
)
def test_any_product_is_the_twins(tokens, top_k, sizes, activation, gated, dtype, seed):
    slots, hidden, outputs = sizes
    places = make_places(tokens, top_k, slots, seed)
    gated = gated and activation is not None
    assert_product_as_twin(places, slots, hidden, outputs, dtype, seed, activation=activation, gated=gated)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "load"), [(20, "few"), (100, "some"), (300, "many")])
def test_every_tile(tokens, load, dtype):
    places = make_places(tokens, 1, 2, 0)
    assert products.load_of(places.numel(), 2) == load
    assert_product_as_twin(places, 2, 70, 150, dtype, 1, activation="silu", gated=True)
    assert_product_as_twin(places, 2, 70, 150, dtype, 1)


def test_rows_as_they_are_and_int8_weights():
    random = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (3, 48, 40), generator=random, dtype=torch.int8)
    scale = torch.rand(3, 48, generator=random) / 127
    x, ends = torch.randn(50, 40, generator=random), torch.tensor([20, 20, 50], dtype=torch.int32)
    for how in ({}, {"activation": "silu", "gated": True}):
        expected = steps.multiply(x, None, ends, weight, scale, **how)
        torch.testing.assert_close(
            products.multiply(x, None, ends, weight, scale, **how), expected, atol=1e-5, rtol=1e-5
        )


@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 30), st.integers(1, 4), st.sampled_from([8, 600]), st.sampled_from(list(TOLERANCE)), st.booleans()
)
def test_any_answers_are_combined_as_by_the_twin(tokens, top_k, hidden, dtype, nowhere):
    """What lies where no choice points is not a number."""
    places = make_places(tokens, top_k, 4, tokens, 1.0 if nowhere else 0.3)
    rows = steps.sort_places(places, 4).rows
    answers = torch.full((places.numel() + 1, hidden), float("nan"), dtype=dtype)
    here = int((rows >= 0).sum())
    answers[:here] = torch.randn(here, hidden).to(dtype)
    weights = torch.rand(tokens, top_k)
    found, expected = combining.combine(answers, rows, weights), steps.combine(answers[:here], rows, weights)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("tokens", [0, 1, 70])
def test_experts_are_those_of_torch(tokens, dtype):
    experts = make_experts(4, 40, 24, random=torch.Generator().manual_seed(0)).to(dtype)
    routes = route(torch.randn(tokens, 4, generator=torch.Generator().manual_seed(1)), Gate(2))
    x = torch.randn(tokens, 40, generator=torch.Generator().manual_seed(2)).to(dtype)
    with torch.no_grad():
        expected = experts(x, routes.experts, routes.weights)
    found = TritonExperts(experts)(x, routes.experts, routes.weights)
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_experts_in_int8_are_those_of_the_rounded_matrices():
    experts = make_experts(3, 40, 24, random=torch.Generator().manual_seed(0))
    routes = route(torch.randn(20, 3, generator=torch.Generator().manual_seed(1)), Gate(2))
    x = torch.randn(20, 40, generator=torch.Generator().manual_seed(2))
    small = make_experts(3, 40, 24)
    scales = []
    for name in ("up", "down"):
        values, scale = quantise(getattr(experts, name).detach())
        setattr(small, name, nn.Parameter(values, requires_grad=False))
        setattr(experts, name, nn.Parameter(values * scale[..., None]))
        scales.append(scale)
    with torch.no_grad():
        expected = experts(x, routes.experts, routes.weights)
    found = TritonExperts(small, *scales)(x, routes.experts, routes.weights)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_interpreted_kernels_have_no_report():
    with pytest.raises(InputError, match="unset it"):
        report("sm_80")
