"""Rotary positions and RMS norms on GPUs in Triton: one pass over each row instead of the several of torch's operators.

Their twins are rope.rotate and torch's rms_norm. No gradients.
"""

from __future__ import annotations

from typing import Any

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from serving.models.rope import Rotation

HEADS = 16
"""Of a token, that one program turns."""


def rotate(qkv: Tensor, heads: int, by: Rotation) -> Tensor:
    """The same as rope.rotate, in place; qkv is contiguous."""
    tokens, all_heads, size = qkv.shape
    if tokens:
        grid = (tokens, triton.cdiv(heads, HEADS))
        cos, sin = by.cos.contiguous(), by.sin.contiguous()
        turn[grid](qkv, cos, sin, all_heads, heads, **turn_constants(size), **TURN_OPTIONS)
    return qkv


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Over the last dimension of x, whose rows are contiguous."""
    y = x.new_empty(x.shape)
    size = x.shape[-1]
    rows = x.numel() // size
    if rows:
        norm[(rows,)](x, weight, y, eps, size, **norm_constants(size), **norm_options(size))
    return y


TURN_OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}


def turn_constants(size: int) -> dict[str, int]:
    """What is known when the kernel is compiled."""
    return {"HALF": size // 2, "PAD": triton.next_power_of_2(size // 2), "HEADS": HEADS}


def norm_constants(size: int) -> dict[str, int]:
    return {"WIDTH": triton.next_power_of_2(size)}


def norm_options(size: int) -> dict[str, Any]:
    """Wide rows take more warps, so that a row stays in registers."""
    return {"num_warps": min(max(triton.next_power_of_2(size) // 512, 1), 16), "enable_fp_fusion": True}


@triton.jit(do_not_specialize=["all_heads", "heads"])  # type: ignore[untyped-decorator]
def turn(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    all_heads: tl.tensor,
    heads: tl.tensor,
    HALF: tl.constexpr,
    PAD: tl.constexpr,
    HEADS: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, PAD)
    within = column < HALF
    c = tl.load(cos + token * HALF + column, mask=within, other=0.0)[None, :]
    s = tl.load(sin + token * HALF + column, mask=within, other=0.0)[None, :]
    cell = qkv + (token * all_heads + head)[:, None] * (2 * HALF) + column[None, :]
    taken = (head < heads)[:, None] & within[None, :]
    first = tl.load(cell, mask=taken, other=0.0).to(tl.float32)
    second = tl.load(cell + HALF, mask=taken, other=0.0).to(tl.float32)
    tl.store(cell, (first * c - second * s).to(qkv.dtype.element_ty), mask=taken)
    tl.store(cell + HALF, (second * c + first * s).to(qkv.dtype.element_ty), mask=taken)


@triton.jit  # type: ignore[untyped-decorator]
def norm(x: tl.tensor, weight: tl.tensor, y: tl.tensor, eps: tl.tensor, size: tl.tensor, WIDTH: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    within = column < size
    value = tl.load(x + row * size + column, mask=within, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / size + eps)
    by = tl.load(weight + column, mask=within, other=0.0).to(tl.float32)
    tl.store(y + row * size + column, (value * scale * by).to(y.dtype.element_ty), mask=within)
