"""The GPU kernels without a GPU: interpreted against the twin, and compiled ahead of time."""

import itertools
from pathlib import Path

import msgspec
import pytest

from placement.errors import InputError
from tests.triton_runs import SHARED_BYTES, assert_interpreted, compiled_reports

HERE = Path(__file__).parent
LANES = {"sm_80": 32, "sm_90": 32, "sm_100": 32, "gfx942": 64}
"""Threads of a warp."""
REGISTERS = {"sm_80": 65536, "sm_90": 65536, "sm_100": 65536, "gfx942": 131072}
"""Of a multiprocessor."""
SCRIPT = """
import sys
import msgspec
from serving.attention.kernel_report import report
sys.stdout.buffer.write(msgspec.json.encode(report(sys.argv[1], every=EVERY)))
"""


def test_interpreted_kernels_compute_what_the_twin_does():
    assert_interpreted(HERE / "interpreted.py")


@pytest.fixture(scope="module")
def reports():
    """All targets at once, a process each."""
    from serving.attention.kernel_report import KernelReport

    out = compiled_reports(SCRIPT.replace("EVERY", "False"))
    return {target: msgspec.json.decode(said, type=list[KernelReport]) for target, said in out.items()}


@pytest.mark.parametrize("target", SHARED_BYTES)
def test_no_kernel_spills_or_takes_more_than_there_is(reports, target):
    assert_fits(target, reports[target])


def assert_fits(target, kernels):
    for kernel in kernels:
        assert kernel.target == target
        assert kernel.spilled == 0, kernel
        assert 8 <= kernel.registers <= (255 if target.startswith("sm_") else 512), kernel
        assert kernel.registers * kernel.warps * LANES[target] <= REGISTERS[target], kernel
        assert kernel.shared_bytes <= SHARED_BYTES[target], kernel
        assert (kernel.shared_bytes > 0) == (kernel.kernel != "store"), kernel


def test_every_tile_is_compiled(reports):
    from serving.attention.kernel_report import GROUPS, HEAD_DIMS, PADDED_DIMS
    from serving.attention.triton_paged import MAX_HEAD_DIM, tile

    def cut(prefill, head_dim, element_bytes):
        return prefill, tile(prefill, head_dim, element_bytes)

    shipped = {cut(p, size, b) for p in (False, True) for size in range(1, MAX_HEAD_DIM + 1) for b in (2, 4)}
    reported = {cut(p, size, b) for p in (False, True) for size in HEAD_DIMS for b in (2, 4)}
    assert shipped == reported
    for kernels in reports.values():
        found = {(k.kernel, k.dtype, k.head_dim) for k in kernels if k.kernel != "store"}
        assert found >= {(k, d, size) for k in ("decode", "prefill") for d in ("fp16", "fp32") for size in HEAD_DIMS}
        assert {size for _, _, size in found} == {*HEAD_DIMS, *PADDED_DIMS}
        assert {k.group for k in kernels} == set(GROUPS)
        assert {k.dtype for k in kernels if k.kernel == "store"} == {"fp16", "bf16", "fp32"}


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_no_kind_of_head_spills():
    from serving.attention.kernel_report import GROUPS, HEAD_DIMS, PADDED_DIMS, KernelReport

    for target, out in compiled_reports(SCRIPT.replace("EVERY", "True"), 1400).items():
        kernels = msgspec.json.decode(out, type=list[KernelReport])
        assert_fits(target, kernels)
        heads = {(k.dtype, k.head_dim, k.group) for k in kernels if k.kernel == "prefill"}
        assert heads == set(itertools.product(("fp16", "bf16", "fp32"), HEAD_DIMS + PADDED_DIMS, GROUPS))


def test_three_decoding_programs_share_a_multiprocessor(reports):
    """Decoding waits for memory: several programs must be there to wait at the same time."""
    for target, kernels in reports.items():
        for kernel in kernels:
            if kernel.kernel == "decode" and kernel.dtype == "fp16" and target.startswith("sm_"):
                fitting = REGISTERS[target] // (kernel.registers * kernel.warps * LANES[target])
                room = min(fitting, SHARED_BYTES[target] // kernel.shared_bytes)
                assert room >= 3, kernel


def test_another_kind_of_target_is_refused():
    from serving.attention.kernel_report import report

    with pytest.raises(InputError, match="such as sm_80"):
        report("gfx1100")
