"""The rows of each slot times its matrix on GPUs, with activation and gate in the same pass, by tiles of rows.

Which slot a tile belongs to is found on the device, from where the slots end, so that nothing is read back. Rows are
gathered as they are loaded: no sorted copy of the tokens is made.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from moe.kernels.tiles import tuned
from moe.steps import Activation

_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
_SQRT_HALF = tl.constexpr(0.7071067811865476)
_TANH_SCALE = tl.constexpr(2 * 0.7978845608028654)


@dataclass(frozen=True)
class Tile:
    """How one launch is cut, and what the compiler may use for it."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def constants(self, inputs: int, dtype: torch.dtype, hip: bool) -> dict[str, Any]:
        """What is known of any product in such tiles when its kernel is compiled; `inputs`: numbers of a row."""
        return {
            "EVEN": inputs % self.depth == 0,
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "DEPTH": self.depth,
            # The interpreter multiplies bf16 wrongly and without a word.
            "DOT": tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else _DTYPES[dtype],
            "PRECISION": "ieee" if hip else "tf32x3",
        }


Load = Literal["few", "some", "many"]
LOADS: tuple[Load, ...] = ("few", "some", "many")
FEW_ROWS, SOME_ROWS = 16, 96
"""Of a slot, on average: with few, the time goes into reading weights; with many, into multiplying."""


def load_of(rows: int, slots: int) -> Load:
    if rows <= FEW_ROWS * slots:
        return "few"
    return "some" if rows <= SOME_ROWS * slots else "many"


def tile(load: Load, gated: bool, element_bytes: int) -> Tile:
    """The tile for slots with so many rows: what was found best on this GPU, or what is shipped."""
    cut = tuned(tile_key(load, gated, element_bytes))
    return shipped_tile(load, gated, element_bytes) if cut is None else Tile(*cut)


def tile_key(load: Load, gated: bool, element_bytes: int) -> str:
    return f"product {load} {'gated' if gated else 'plain'} {element_bytes}"


def shipped_tile(load: Load, gated: bool, element_bytes: int) -> Tile:
    """None spills a register (see report)."""
    if element_bytes == 4:
        return Tile(16 if load == "few" else 32, 32 if gated else 64, 32, 4, 2)
    columns = 64 if gated else 128
    if load == "few":
        return Tile(16, columns, 64, 4, 3)
    return Tile(64, columns, 64, 8, 3) if load == "some" else Tile(128, columns, 32, 8, 3)


def multiply(
    x: Tensor,
    tokens: Tensor | None,
    ends: Tensor,
    weight: Tensor,
    scale: Tensor | None = None,
    *,
    activation: Activation | None = None,
    gated: bool = False,
) -> Tensor:
    """The same as steps.multiply; gives a row for every choice, of which those that are elsewhere mean nothing."""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows = len(x) if tokens is None else len(tokens)
    slots, outputs, inputs = weight.shape
    outputs = outputs // 2 if gated else outputs
    y = x.new_empty(rows, outputs)
    if not rows:
        return y
    load = load_of(rows, slots)
    cut = tile(load, gated, x.itemsize)
    grid = (rows // cut.rows + slots, triton.cdiv(outputs, cut.columns))
    arrays = x, ends if tokens is None else tokens, ends, weight, ends if scale is None else scale, y
    known = constants(load, gated, activation, tokens is not None, scale is not None, inputs, x.dtype, is_hip())
    multiply_tiles[grid](*arrays, slots, outputs, inputs, x.stride(0), **known, **options(cut))
    return y


def is_hip() -> bool:
    return torch.version.hip is not None


def constants(
    load: Load,
    gated: bool,
    activation: Activation | None,
    gathered: bool,
    scaled: bool,
    inputs: int,
    dtype: torch.dtype,
    hip: bool,
) -> dict[str, Any]:
    """What is known when the kernel is compiled."""
    cut = tile(load, gated, dtype.itemsize)
    return {
        "GATED": gated,
        "ACTIVATION": activation or "none",
        "GATHERED": gathered,
        "SCALED": scaled,
        **cut.constants(inputs, dtype, hip),
    }


def options(cut: Tile) -> dict[str, Any]:
    """How the compiler may run the kernel."""
    return {"num_warps": cut.warps, "num_stages": cut.stages, "enable_fp_fusion": True}


@triton.jit  # type: ignore[untyped-decorator]
def _slot_of(tile_index: tl.tensor, ends: tl.tensor, slots: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """The last slot whose first tile is not behind this one; slot s begins at tile (its first row) // ROWS + s."""
    low = 0
    high = slots
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(ends + middle - 1) // ROWS + middle <= tile_index:
            low = middle
        else:
            high = middle
    return low


@triton.jit  # type: ignore[untyped-decorator]
def _activate(x: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    if ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * _SQRT_HALF))
    elif ACTIVATION == "gelu_tanh":
        x = x * tl.sigmoid((x + 0.044715 * x * x * x) * _TANH_SCALE)  # (1 + tanh(z)) / 2 = sigmoid(2 z)
    return x


@triton.jit(do_not_specialize=["slots"])  # type: ignore[untyped-decorator]
def multiply_tiles(
    x: tl.tensor,
    tokens: tl.tensor,
    ends: tl.tensor,
    weight: tl.tensor,
    scale: tl.tensor,
    y: tl.tensor,
    slots: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    x_stride: tl.tensor,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATHERED: tl.constexpr,
    SCALED: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    slot = _slot_of(tl.program_id(0), ends, slots, ROWS)
    begin = 0
    if slot > 0:
        begin = tl.load(ends + slot - 1)
    end = tl.load(ends + slot)
    first = begin + (tl.program_id(0) - begin // ROWS - slot) * ROWS
    if first >= end:
        return
    row = first + tl.arange(0, ROWS)
    valid = row < end
    source = row
    if GATHERED:
        source = tl.load(tokens + row, mask=valid, other=0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    within = column < outputs
    depth = tl.arange(0, DEPTH)
    from_x = x + source.to(tl.int64)[:, None] * x_stride + depth[None, :]
    matrix_rows = outputs * 2 if GATED else outputs
    from_weight = weight + (tl.cast(slot, tl.int64) * matrix_rows + column)[None, :] * inputs + depth[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    second = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, inputs, DEPTH):
        taken, used = valid[:, None], within[None, :]
        if not EVEN:
            taken = taken & (start + depth < inputs)[None, :]
            used = used & (start + depth < inputs)[:, None]
        a = tl.load(from_x + start, mask=taken, other=0.0).to(DOT)
        b = tl.load(from_weight + start, mask=used, other=0).to(DOT)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        if GATED:
            c = tl.load(from_weight + outputs * inputs + start, mask=used, other=0).to(DOT)
            second = tl.dot(a, c, second, input_precision=PRECISION)
    if SCALED:
        from_scale = scale + slot * matrix_rows + column
        total *= tl.load(from_scale, mask=within, other=0.0)[None, :]
        if GATED:
            second *= tl.load(from_scale + outputs, mask=within, other=0.0)[None, :]
    total = _activate(total, ACTIVATION)
    if GATED:
        total *= second
    to = y + row.to(tl.int64)[:, None] * outputs + column[None, :]
    tl.store(to, total.to(y.dtype.element_ty), mask=valid[:, None] & within[None, :])
