"""The GPU kernels without a GPU: interpreted against the twin, and compiled ahead of time."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from placement.errors import InputError

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
"""That one program may have."""
LANES = {"sm_80": 32, "sm_90": 32, "sm_100": 32, "gfx942": 64}
"""Threads of a warp."""
REGISTERS = {"sm_80": 65536, "sm_90": 65536, "sm_100": 65536, "gfx942": 131072}
"""Of a multiprocessor."""
SCRIPT = """
import sys
import msgspec
from serving.attention.kernel_report import report
sys.stdout.buffer.write(msgspec.json.encode(report(sys.argv[1])))
"""


def environment(**changes):
    # What was compiled once need not be compiled again: Triton's cache goes by what is compiled.
    cache = Path(tempfile.gettempdir()) / f"penstock-triton-{os.getuid()}"
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return kept | {"TRITON_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"} | changes


def test_interpreted_kernels_compute_what_the_twin_does():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "interpreted.py")],
        cwd=ROOT,
        env=environment(TRITON_INTERPRET="1"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@pytest.fixture(scope="module")
def reports():
    """All targets at once, a process each."""
    options = {"cwd": ROOT, "env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    runs = {target: subprocess.Popen([sys.executable, "-c", SCRIPT, target], **options) for target in SHARED_BYTES}
    try:
        said = {target: run.communicate(timeout=240) for target, run in runs.items()}
    finally:
        for run in runs.values():
            run.kill()
            run.wait()
    assert not any(run.returncode for run in runs.values()), said
    from serving.attention.kernel_report import KernelReport

    return {target: msgspec.json.decode(out, type=list[KernelReport]) for target, (out, _) in said.items()}


@pytest.mark.parametrize("target", SHARED_BYTES)
def test_no_kernel_spills_or_takes_more_than_there_is(reports, target):
    for kernel in reports[target]:
        assert kernel.target == target
        assert kernel.spilled == 0, kernel
        assert 8 <= kernel.registers <= (255 if target.startswith("sm_") else 512), kernel
        assert kernel.registers * kernel.warps * LANES[target] <= REGISTERS[target], kernel
        assert kernel.shared_bytes <= SHARED_BYTES[target], kernel
        assert (kernel.shared_bytes > 0) == (kernel.kernel != "store"), kernel


def test_every_tile_is_compiled(reports):
    from serving.attention.kernel_report import HEAD_DIMS
    from serving.attention.triton_paged import MAX_HEAD_DIM, tile

    def cut(prefill, head_dim, element_bytes):
        return prefill, tile(prefill, head_dim, element_bytes)

    shipped = {cut(p, size, b) for p in (False, True) for size in range(1, MAX_HEAD_DIM + 1) for b in (2, 4)}
    reported = {cut(p, size, b) for p in (False, True) for size in HEAD_DIMS for b in (2, 4)}
    assert shipped == reported
    for kernels in reports.values():
        found = {(k.kernel, k.dtype, k.head_dim) for k in kernels if k.kernel != "store"}
        assert found == {(k, d, size) for k in ("decode", "prefill") for d in ("fp16", "fp32") for size in HEAD_DIMS}
        assert {k.dtype for k in kernels if k.kernel == "store"} == {"fp16", "fp32"}


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
