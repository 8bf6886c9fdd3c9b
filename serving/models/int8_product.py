"""Rows times int8 weights on GPUs in Triton, with the RMS norm before it in the same pass: for the few tokens of a
decoding step.

A weight is one byte on its way to the device's registers and nowhere wider in memory; a norm's factor is one number for
a row, so it is found beside the product and applied to its sum. The twin is linear.multiply_int8. No gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from moe.kernels.products import Tile, options
from moe.kernels.tiles import Cut, tuned
from serving.models.linear import Norm

_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
ROWS = (16, 32, 64)
"""Of a tile: the least that holds the step's tokens, so that weights are read once."""
MOST_TOKENS = 64
"""Above it, widening the weights once for torch's own product is worth it: a guess until `penstock check --tune`."""
MOST_KEY = "int8 product tokens"


def pays(tokens: int) -> bool:
    """Whether so many tokens are faster here than by torch's product."""
    return tokens <= most_tokens()


def most_tokens() -> int:
    cut = tuned(MOST_KEY)
    return MOST_TOKENS if cut is None else cut.first


def cut_at(tokens: int) -> Cut:
    """The table's entry that says so."""
    return Cut(tokens, 0, 0, 0)


def rows_of(tokens: int) -> int:
    return next((rows for rows in ROWS if tokens <= rows), ROWS[-1])


def tile(rows: int, normed: bool) -> Tile:
    """The tile for so many rows: what was found best on this GPU, or what is shipped."""
    cut = tuned(tile_key(rows, normed))
    return shipped_tile(rows, normed) if cut is None else Tile(*cut)


def tile_key(rows: int, normed: bool) -> str:
    return f"int8 product {rows} {'normed' if normed else 'plain'}"


def shipped_tile(rows: int, normed: bool) -> Tile:
    """None spills a register (see int8_report)."""
    return Tile(rows, 32, 128, 4, 4) if rows == 16 else Tile(rows, 64, 64, 4, 3)


def multiply(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, norm: Norm | None = None) -> Tensor:
    """The same as linear.multiply_int8."""
    x = x if x.stride(1) == 1 else x.contiguous()
    tokens, inputs = x.shape
    outputs = len(weight)
    y = x.new_empty(tokens, outputs)
    if not tokens:
        return y
    gain, eps = (scale, 0.0) if norm is None else norm
    cut = tile(rows_of(tokens), norm is not None)
    grid = (triton.cdiv(tokens, cut.rows), triton.cdiv(outputs, cut.columns))
    known = constants(cut, norm is not None, inputs, x.dtype, torch.version.hip is not None)
    arrays = x, weight, scale, bias, gain, y
    multiply_tiles[grid](*arrays, eps, tokens, outputs, inputs, x.stride(0), **known, **options(cut))
    return y


def constants(cut: Tile, normed: bool, inputs: int, dtype: torch.dtype, hip: bool) -> dict[str, Any]:
    """What is known when the kernel is compiled."""
    return {"NORMED": normed, **cut.constants(inputs, dtype, hip)}


@triton.jit(do_not_specialize=["tokens"])  # type: ignore[untyped-decorator]
def multiply_tiles(
    x: tl.tensor,
    weight: tl.tensor,
    scale: tl.tensor,
    bias: tl.tensor,
    gain: tl.tensor,
    y: tl.tensor,
    eps: tl.tensor,
    tokens: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    x_stride: tl.tensor,
    NORMED: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = (row < tokens)[None, :]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = column < outputs
    depth = tl.arange(0, DEPTH)
    # Weights on the left: once widened they stay in registers, and few tokens leave no part of a product idle.
    from_weight = weight + column.to(tl.int64)[:, None] * inputs + depth[None, :]
    from_x = x + row.to(tl.int64)[None, :] * x_stride + depth[:, None]
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    squares = tl.zeros([DEPTH, ROWS], tl.float32)
    for start in range(0, inputs, DEPTH):
        used, taken, inside = within[:, None], valid, depth < DEPTH
        if not EVEN:
            inside = start + depth < inputs
            used, taken = used & inside[None, :], taken & inside[:, None]
        a = tl.load(from_weight + start, mask=used, other=0).to(DOT)
        b = tl.load(from_x + start, mask=taken, other=0.0)
        if NORMED:
            wide = b.to(tl.float32)
            squares += wide * wide
            by = tl.load(gain + start + depth, mask=inside, other=0.0).to(tl.float32)
            b = wide * by[:, None]
        total = tl.dot(a, b.to(DOT), total, input_precision=PRECISION)
    if NORMED:
        total *= (1.0 / tl.sqrt(tl.sum(squares, 0) / inputs + eps))[None, :]
    total *= tl.load(scale + column, mask=within, other=0.0)[:, None]
    total += tl.load(bias + column, mask=within, other=0.0).to(tl.float32)[:, None]
    to = y + row.to(tl.int64)[None, :] * outputs + column[:, None]
    tl.store(to, total.to(y.dtype.element_ty), mask=valid & within[:, None])
