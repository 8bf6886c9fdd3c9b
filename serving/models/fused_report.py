"""What the row kernels cost on a kind of GPU: compiled ahead of time for it, with no GPU at hand."""

from __future__ import annotations

from typing import NamedTuple

from moe.kernels.ahead import Usage, compile_ahead, gpu_of
from serving.models import fused_rows

HEAD_SIZES = (64, 128, 256)
ROW_SIZES = (128, 2048, 8192, 16384)
DTYPES = ("fp16", "fp32")


class RowReport(NamedTuple):
    kernel: str
    dtype: str
    size: int
    usage: Usage


def report(target: str) -> list[RowReport]:
    """Every kernel and size that is shipped, for "sm_80" and its like or "gfx942" and its like."""
    gpu = gpu_of(target)
    found = []
    for dtype in DTYPES:
        for size in HEAD_SIZES:
            kinds = {"qkv": f"*{dtype}", "cos": "*fp32", "sin": "*fp32", "all_heads": "i32", "heads": "i32"}
            constants, options = fused_rows.turn_constants(size), fused_rows.TURN_OPTIONS
            found.append(
                RowReport("rope", dtype, size, compile_ahead(fused_rows.turn, kinds, constants, options, (), gpu))
            )
        for size in ROW_SIZES:
            kinds = dict.fromkeys(("x", "weight", "y"), f"*{dtype}") | {"eps": "fp32", "size": "i32"}
            constants, options = fused_rows.norm_constants(size), fused_rows.norm_options(size)
            usage = compile_ahead(fused_rows.norm, kinds, constants, options, ("size",), gpu)
            found.append(RowReport("rms norm", dtype, size, usage))
    return found
