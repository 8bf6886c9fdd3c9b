"""The experts of one layer that live on one device, in plain torch: a slot holds the weights of one expert.

Trains, and runs on every device; serving puts faster forms of the same signature in its place (see `Compute`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from moe.steps import Activation, combine, multiply, sort_places


class Compute(Protocol):
    """What an expert layer needs of its experts."""

    def __call__(self, x: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        """x [tokens, hidden]; places [tokens, top_k], the slot of each choice or -1 for elsewhere; weights
        [tokens, top_k] float32. For each token the sum over its choices here of weight x answer: [tokens, hidden]."""


class Experts(nn.Module):
    """up, activation, down; with a gate where `gated` (the first half of `up`): SwiGLU is gated silu."""

    def __init__(self, slots: int, hidden: int, ffn: int, gated: bool = True, activation: Activation = "silu") -> None:
        super().__init__()
        self.gated, self.activation = gated, activation
        self.up = nn.Parameter(torch.empty(slots, 2 * ffn if gated else ffn, hidden))
        self.down = nn.Parameter(torch.empty(slots, hidden, ffn))

    def forward(self, x: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        if not len(self.up):
            return torch.zeros_like(x)
        tokens, ends, rows = sort_places(places, len(self.up))
        inside = multiply(x, tokens, ends, self.up, activation=self.activation, gated=self.gated)
        return combine(multiply(inside, None, ends, self.down), rows, weights)
