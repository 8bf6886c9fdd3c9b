"""Answers of experts added up by their weights on GPUs, in float32, each token's in the order of its choices."""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

BLOCK = 512
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


def combine(answers: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """The same as steps.combine."""
    tokens, top_k = rows.shape
    hidden = answers.shape[1]
    y = answers.new_empty(tokens, hidden)
    if tokens:
        grid = (tokens, triton.cdiv(hidden, BLOCK))
        add_answers[grid](answers, rows, weights.contiguous(), y, hidden, TOP_K=top_k, BLOCK=BLOCK, **OPTIONS)
    return y


@triton.jit  # type: ignore[untyped-decorator]
def add_answers(
    answers: tl.tensor,
    rows: tl.tensor,
    weights: tl.tensor,
    y: tl.tensor,
    hidden: tl.tensor,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(TOP_K):
        row = tl.load(rows + token * TOP_K + choice).to(tl.int64)
        weight = tl.load(weights + token * TOP_K + choice)
        at = row * hidden + column
        inside = (column < hidden) & (at >= 0)  # a row of -1 lies before the first
        total += weight * tl.load(answers + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + token * hidden + column, total.to(y.dtype.element_ty), mask=column < hidden)
