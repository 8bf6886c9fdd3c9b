"""Random rows and int8 weights, and what their product reads and multiplies: what the int8 kernel is compared on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from serving.models.linear import Norm, quantise


class Int8Arrays(NamedTuple):
    """As int8_product.multiply takes them."""

    x: Tensor
    weight: Tensor
    scale: Tensor
    bias: Tensor
    norm: Norm | None


class Int8Case(NamedTuple):
    tokens: int
    inputs: int
    outputs: int
    normed: bool

    @property
    def flops(self) -> float:
        return 2.0 * self.tokens * self.inputs * self.outputs

    def bytes_moved(self, item: int) -> float:
        return self.inputs * self.outputs + float(self.tokens * (self.inputs + self.outputs) * item)

    def make(self, where: torch.device, dtype: torch.dtype) -> Int8Arrays:
        random = torch.Generator().manual_seed(6)
        x = torch.randn(self.tokens, self.inputs, generator=random) * (3 if self.normed else 1)
        weight, scale = quantise(torch.randn(self.outputs, self.inputs, generator=random) * self.inputs**-0.5)
        bias = torch.randn(self.outputs, generator=random)
        gain = 1 + 0.1 * torch.randn(self.inputs, generator=random)
        norm = Norm(gain.to(where, dtype), 1e-6) if self.normed else None
        return Int8Arrays(x.to(where, dtype), weight.to(where), scale.to(where), bias.to(where, dtype), norm)
