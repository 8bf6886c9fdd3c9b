"""Products with packed matrices, against torch's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.models.linear import Linear, prepare, quantise
from serving.models.panels import WIDTH, pack


def make_linear(inputs, outputs, bias, seed=0):
    random = torch.Generator().manual_seed(seed)
    linear = Linear(inputs, outputs, bias)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(outputs, inputs, generator=random))
        if bias:
            linear.bias.copy_(torch.randn(outputs, generator=random))
    return linear


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), inputs=st.integers(1, 70), outputs=st.integers(1, 70), bias=st.booleans())
def test_float_product(rows, inputs, outputs, bias):
    linear = make_linear(inputs, outputs, bias)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
    with torch.no_grad():
        torch.testing.assert_close(prepare(linear, "fp32")(x), linear(x), atol=1e-4, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 40), inputs=st.integers(1, 70), outputs=st.integers(1, 70), bias=st.booleans())
def test_int8_product_is_that_of_the_rounded_weights(rows, inputs, outputs, bias):
    linear = make_linear(inputs, outputs, bias)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
    weight, scale = quantise(linear.weight.detach())
    assert (weight.float() * scale[:, None] - linear.weight).abs().max() <= scale.max() / 2 + 1e-6
    expected = x @ (weight.float() * scale[:, None]).t() + (linear.bias.detach() if bias else 0)
    torch.testing.assert_close(prepare(linear, "int8")(x), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_row_gives_the_same_bits_in_any_batch(precision):
    linear = prepare(make_linear(300, 50, bias=True), precision)
    x = torch.randn(33, 300)
    together = linear(x)
    for row in range(33):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])


def test_rows_may_be_part_of_a_wider_matrix():
    linear = make_linear(20, 24, bias=False)
    wide = torch.randn(5, 60)
    for part in (wide[:, 20:40], wide[:, ::3]):
        with torch.no_grad():
            torch.testing.assert_close(prepare(linear, "fp32")(part), linear(part), atol=1e-4, rtol=1e-4)


def test_packing_keeps_every_weight_once():
    weight = torch.arange(37 * 5.0).view(37, 5)
    packed = pack(weight)
    assert packed.shape == (3, 5, WIDTH)
    assert torch.equal(packed.transpose(1, 2).reshape(-1, 5)[:37], weight)
    assert packed.transpose(1, 2).reshape(-1, 5)[37:].abs().sum() == 0
