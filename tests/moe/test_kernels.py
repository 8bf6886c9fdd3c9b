"""The expert kernels without a GPU: interpreted against their twins, and compiled ahead of time."""

from pathlib import Path

import msgspec
import pytest

from placement.errors import InputError
from tests.triton_runs import MOST_REGISTERS, SHARED_BYTES, assert_interpreted, compiled_reports

HERE = Path(__file__).parent
SCRIPT = """
import sys
import msgspec
from moe.kernels.report import report, spilling
target = sys.argv[1]
sys.stdout.buffer.write(msgspec.json.encode([report(target), [spilling(target)]]))
"""
EVERY = """
import sys
import msgspec
from moe.kernels.report import report
sys.stdout.buffer.write(msgspec.json.encode(report(sys.argv[1], every=True)))
"""


def test_interpreted_kernels_compute_what_their_twins_do():
    assert_interpreted(HERE / "interpreted.py")


@pytest.fixture(scope="module")
def reports():
    """All targets at once, a process each: the shipped kernels, and one made to spill."""
    from moe.kernels.report import KernelReport

    return {
        target: msgspec.json.decode(out, type=list[list[KernelReport]])
        for target, out in compiled_reports(SCRIPT).items()
    }


@pytest.mark.parametrize("target", SHARED_BYTES)
def test_no_kernel_spills_or_takes_more_than_there_is(reports, target):
    assert_fits(target, reports[target][0])


def assert_fits(target, kernels):
    for kernel in kernels:
        assert kernel.target == target
        assert kernel.spilled == 0, kernel
        assert 8 <= kernel.registers <= MOST_REGISTERS[target], kernel
        assert kernel.shared_bytes <= SHARED_BYTES[target], kernel
        assert (kernel.shared_bytes > 0) == (kernel.kernel != "combine"), kernel


@pytest.mark.parametrize("target", SHARED_BYTES)
def test_a_tile_too_large_is_seen_to_spill(reports, target):
    _, [kernel] = reports[target]
    assert kernel.spilled > 0, kernel


def test_every_tile_is_compiled(reports):
    from moe.kernels.products import LOADS, tile

    cuts = {(gated, tile(load, gated, size)) for load in LOADS for gated in (False, True) for size in (2, 4)}
    wanted = {("gated product" if gated else "product", (cut.rows, cut.columns, cut.depth)) for gated, cut in cuts}
    for shipped, _ in reports.values():
        assert {(kernel.kernel, kernel.tile) for kernel in shipped if kernel.tile} == wanted
        assert {kernel.weights for kernel in shipped if kernel.tile} == {"fp16", "fp32", "i8"}
        assert {kernel.kernel for kernel in shipped if not kernel.tile} == {"count", "put", "combine"}
        for name, usual in (("gated product", "fp16, silu, gathered"), ("product", "fp16, plain")):
            variants = {kernel.variant for kernel in shipped if kernel.kernel == name}
            assert variants >= {usual, "fp16, gelu, gathered, uneven", "bf16, gelu, gathered, uneven"}


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_no_variant_of_a_layer_spills():
    from moe.kernels.report import KernelReport

    for target, out in compiled_reports(EVERY, 1400).items():
        kernels = msgspec.json.decode(out, type=list[KernelReport])
        assert_fits(target, kernels)
        assert {"bf16, gelu_tanh, gathered, uneven", "fp32, plain, gathered"} <= {one.variant for one in kernels}


@pytest.mark.parametrize("target", ["sm_8", "gfx1100", "cpu"])
def test_another_kind_of_target_is_refused(target):
    from moe.kernels.report import report

    with pytest.raises(InputError, match="such as sm_80"):
        report(target)
