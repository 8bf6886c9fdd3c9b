"""The int8 product in Triton's interpreter, against its twin; test_int8_product runs this file with TRITON_INTERPRET=1,
which has to be set before anything imports Triton."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.check.int8_case import Int8Case
from serving.models import int8_product, make_shard, read_config
from serving.models.decoder import RmsNorm
from serving.models.linear import Int8Linear, Linear, Norm, multiply_int8
from serving.models.load import load_shard
from serving.models.normed_linear import NormedLinear, join_norms
from serving.models.runner import GenerateRunner
from tests.serving.models.steps import BLOCKS, step_of
from tests.serving.models.tiny import save

TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}
CPU = torch.device("cpu")


def assert_as_twin(case, dtype):
    arrays = case.make(CPU, dtype)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(int8_product.multiply(*arrays), multiply_int8(*arrays), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tokens", [16, 20, 64, 70])
def test_every_tile_computes_what_the_twin_does(tokens, dtype):
    assert_as_twin(Int8Case(tokens, 128, 70, normed=True), dtype)
    assert_as_twin(Int8Case(tokens, 128, 70, normed=False), dtype)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 40), st.integers(1, 200), st.integers(1, 90), st.booleans(), st.sampled_from(list(TOLERANCE)[:2]))
def test_any_sizes(tokens, inputs, outputs, normed, dtype):
    assert_as_twin(Int8Case(tokens, inputs, outputs, normed), dtype)


def test_rows_that_lie_apart_and_a_row_of_zeros():
    x, weight, scale, bias, norm = Int8Case(4, 96, 40, normed=True).make(CPU, torch.float32)
    x[2] = 0
    apart = torch.cat((x, x), dim=1)[:, :96]
    found = int8_product.multiply(apart, weight, scale, bias, norm)
    torch.testing.assert_close(found, multiply_int8(x, weight, scale, bias, norm), atol=2e-5, rtol=2e-5)
    assert torch.equal(found[2], bias)


def on_gpu(model):
    """The model in the forms that a GPU gets, though here."""
    for name, module in list(model.named_modules()):
        if isinstance(module, Linear) and not name.endswith("router"):
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, Int8Linear(module))
    return model


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_a_model_says_the_same_with_and_without_the_kernel(name, tmp_path, monkeypatch):
    path = save(name, tmp_path)
    config = read_config(path)
    # Loaded as it is, not in a CPU's panels.
    monkeypatch.setattr("serving.models.load.prepare", lambda linear, precision: linear)
    monkeypatch.setattr("serving.models.load.prepare_experts", lambda experts, precision: experts)
    model = on_gpu(load_shard(path, config, make_shard(config.sizes, 1, 1, 0)))
    join_norms(model)
    dense = config.sizes.layers if name == "llama" else 0
    normed = [one for one in model.modules() if isinstance(one, NormedLinear)]
    assert len(normed) == (0 if name == "gpt2" else config.sizes.layers + dense + 1)
    kept = [one for one in model.modules() if isinstance(one, RmsNorm)]
    assert len(kept) == (0 if name == "gpt2" else 2 * config.sizes.layers + 1)

    runner = GenerateRunner(model, BLOCKS, "cpu", torch.float32, recorder=lambda: None)
    eager = logits_of(runner, model)
    calls = []
    multiply = int8_product.multiply
    monkeypatch.setattr(Int8Linear, "pays", lambda self, x: int8_product.pays(len(x)))
    monkeypatch.setattr(int8_product, "multiply", lambda *given: (calls.append(len(given)), multiply(*given))[1])
    ours = logits_of(runner, model)
    torch.testing.assert_close(ours, eager, atol=1e-4, rtol=1e-4)
    assert calls.count(5) == len(normed)
    assert calls.count(4) >= 2 * dense


def logits_of(runner, model):
    step = step_of([(0, [3, 1, 4, 1, 5]), (2, [9, 2])])
    with torch.inference_mode():
        return model.logits(runner._hidden(step, None))


def test_many_tokens_are_left_to_torch(monkeypatch):
    random = torch.Generator().manual_seed(0)
    linear = Linear(32, 16, bias=True)
    for parameter in linear.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random)
    norm = RmsNorm(32, 1e-5)
    layer = NormedLinear(norm, Int8Linear(linear))
    monkeypatch.setattr(Int8Linear, "pays", lambda self, x: int8_product.pays(len(x)))
    monkeypatch.setattr(int8_product, "multiply", lambda *given: pytest.fail("not for so many tokens"))
    x = torch.randn(int8_product.MOST_TOKENS + 1, 32, generator=random)
    expected = multiply_int8(x, layer.linear.weight, layer.linear.scale, layer.linear.bias, Norm(norm.weight, 1e-5))
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), expected)
