"""Norm and int8 product in one kernel, without a GPU: interpreted against the twin, and compiled ahead of time."""

from pathlib import Path

import msgspec
import pytest
import torch

from moe.kernels.tiles import trying
from serving.models.linear import Int8Linear, Linear
from tests.triton_runs import MOST_REGISTERS, SHARED_BYTES, assert_interpreted, compiled_reports

HERE = Path(__file__).parent
SCRIPT = """
import sys
import msgspec
from serving.models.int8_report import report
sys.stdout.buffer.write(msgspec.json.encode(report(sys.argv[1])))
"""


def test_the_interpreted_kernel_computes_what_its_twin_does():
    assert_interpreted(HERE / "int8_interpreted.py")


@pytest.fixture(scope="module")
def reports():
    """All targets at once, a process each."""
    return {target: msgspec.json.decode(out) for target, out in compiled_reports(SCRIPT).items()}


@pytest.mark.parametrize("target", SHARED_BYTES)
def test_no_tile_spills_or_takes_more_than_there_is(reports, target):
    from serving.models.int8_product import ROWS

    assert {(normed, cut["rows"]) for normed, cut, _ in reports[target]} == {
        (n, r) for n in (True, False) for r in ROWS
    }
    for normed, cut, (_, registers, shared_bytes, spilled) in reports[target]:
        assert spilled == 0, (normed, cut)
        assert 8 <= registers <= MOST_REGISTERS[target], (normed, cut)
        assert 0 < shared_bytes <= SHARED_BYTES[target], (normed, cut)


def test_the_bound_of_tokens_comes_from_the_table():
    from serving.models import int8_product

    assert int8_product.pays(int8_product.MOST_TOKENS)
    assert not int8_product.pays(int8_product.MOST_TOKENS + 1)
    with trying(int8_product.MOST_KEY, int8_product.cut_at(4)):
        assert int8_product.pays(4)
        assert not int8_product.pays(5)


def test_an_int8_layer_follows_its_model_to_another_device():
    """A model that sleeps shall leave nothing behind."""
    layer = Int8Linear(Linear(8, 4, bias=False)).to("meta")
    assert {tensor.device.type for tensor in (layer.weight, layer.scale, layer.bias)} == {"meta"}
    assert (layer.weight.dtype, layer.scale.dtype) == (torch.int8, torch.float32)
