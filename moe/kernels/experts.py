"""The experts of one layer on a GPU, by the three kernels: weights of the activations' dtype, or int8 with scales."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from moe.experts import Experts
from moe.kernels.combining import combine
from moe.kernels.products import multiply
from moe.kernels.sorting import sort_places


class TritonExperts(nn.Module):
    """The same signature as `moe.experts.Experts`, whose weights it takes over; where these are int8, each of their
    outputs has a scale [slots, outputs]."""

    up: Tensor
    down: Tensor
    up_scale: Tensor | None
    down_scale: Tensor | None

    def __init__(self, experts: Experts, up_scale: Tensor | None = None, down_scale: Tensor | None = None) -> None:
        super().__init__()
        self.gated, self.activation = experts.gated, experts.activation
        for name, value in (("up", experts.up.detach()), ("down", experts.down.detach())):
            self.register_buffer(name, value)
        self.register_buffer("up_scale", up_scale)
        self.register_buffer("down_scale", down_scale)

    def forward(self, x: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        if not len(self.up):
            return torch.zeros_like(x)
        tokens, ends, rows = sort_places(places, len(self.up))
        gated, activation = self.gated, self.activation
        inside = multiply(x, tokens, ends, self.up, self.up_scale, activation=activation, gated=gated)
        return combine(multiply(inside, None, ends, self.down, self.down_scale), rows, weights)
