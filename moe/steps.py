"""The three steps of an expert layer in torch: sort choices by slot, multiply each slot's rows, combine the answers.

What the kernels must compute, with their signatures. A choice is one of the top_k experts of one token; its place is
the slot of this device that computes it, or -1 for elsewhere.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal["silu", "gelu", "gelu_tanh"]

GROUPED_FROM_ROWS = 64
"""From here on one grouped product: on a CPU the two ways are alike for few rows, and grouping is up to 12% faster for
1024 (benchmarks/moe_layer.py)."""

_ALIGNED_BYTES = 16  # of a row; torch groups no others


class Sorted(NamedTuple):
    """The choices that are computed here in the order of their slots; those of a slot in the order of tokens."""

    tokens: Tensor
    """[choices] int32: the token of each; what lies behind the last slot's end means nothing."""
    ends: Tensor
    """[slots] int32: slot s has the choices tokens[ends[s - 1] : ends[s]]."""
    rows: Tensor
    """[tokens, top_k] int32: where each choice lies among them; -1 for elsewhere."""


def sort_places(places: Tensor, slots: int) -> Sorted:
    """places [tokens, top_k]."""
    flat = places.flatten()
    flat = torch.where(flat < 0, slots, flat)
    ends = torch.bincount(flat, minlength=slots + 1)[:slots].cumsum(0).int()
    order = flat.argsort(stable=True)
    rows = torch.empty_like(order, dtype=torch.int32)
    rows[order] = torch.arange(len(order), dtype=torch.int32, device=order.device)
    return Sorted((order // places.shape[1]).int(), ends, rows.view(places.shape).masked_fill(places < 0, -1))


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
    """The rows x[tokens] (x itself where None), each times the matrix of its slot, and then the activation.

    x [rows, inputs]; ends [slots] as in Sorted; weight [slots, outputs, inputs], int8 with scale [slots, outputs] or of
    x's dtype. Gives [rows, outputs], or with `gated` half as many: the activation of the first half times the second.
    """
    rows = x[: int(ends[-1])] if tokens is None else x[tokens[: int(ends[-1])]]
    if scale is None and len(rows) >= GROUPED_FROM_ROWS and rows.shape[1] * rows.itemsize % _ALIGNED_BYTES == 0:
        wide = torch._grouped_mm(rows, weight.transpose(1, 2), offs=ends)
    else:
        wide = one_by_one(rows, ends, weight, scale)
    if activation is None:
        return wide
    return gate(wide, activation) if gated else activate(wide, activation)


def one_by_one(rows: Tensor, ends: Tensor, weight: Tensor, scale: Tensor | None = None) -> Tensor:
    """One product for each slot that has rows."""
    answers = [rows.new_empty(0, weight.shape[1])]
    for slot, (start, stop) in enumerate(pairwise([0, *ends.tolist()])):
        if start < stop:
            one = F.linear(rows[start:stop], weight[slot].to(rows.dtype))
            answers.append(one if scale is None else one * scale[slot].to(rows.dtype))
    return torch.cat(answers)


def combine(answers: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """For each token the sum of its answers by their weights, in float32; [tokens, hidden] of the answers' dtype.

    answers [choices, hidden]; rows [tokens, top_k] as in Sorted; weights [tokens, top_k] float32.
    """
    if not len(answers):
        return answers.new_zeros(len(rows), answers.shape[1])
    here = rows >= 0
    weights = weights * here
    found = answers[torch.where(here, rows, 0)].float()
    return (weights[:, None, :] @ found)[:, 0].to(answers.dtype)


def gate(up: Tensor, activation: Activation) -> Tensor:
    """The activation of the first half of up [rows, 2 ffn] times its second half."""
    first, second = up.chunk(2, dim=-1)
    return activate(first, activation) * second


def activate(x: Tensor, activation: Activation) -> Tensor:
    if activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
