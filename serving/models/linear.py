"""Linear layers, plain and prepared for the device: on CPU in panels, in float32 or int8; on GPU int8 with scales.

`Linear` is what models are built of and what trains; `prepare` turns one into the form that serves fastest.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Precision = Literal["fp32", "fp16", "bf16", "int8"]


class Linear(nn.Module):
    """y = x W^T + b with W [outputs, inputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class PanelLinear(nn.Module):
    """On CPU: the weight as `panels` wants it, float32 or int8."""

    def __init__(self, linear: Linear, precision: Precision) -> None:
        super().__init__()
        from serving.models.panels import Panels

        self.outputs = linear.outputs
        weight, scale = linear.weight.detach(), torch.ones(linear.outputs)
        if precision == "int8":
            weight, scale = quantise(weight)
        bias = torch.zeros(self.outputs) if linear.bias is None else linear.bias.detach()
        self.panels = Panels(weight, scale, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.panels.multiply(x)


class Int8Linear(nn.Module):
    """On GPU: int8 weights, widened where they are used."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.outputs = linear.outputs
        self.weight, self.scale = quantise(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return y if self.bias is None else y.add_(self.bias)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weight as int8 and one scale for each output: its largest weight becomes 127."""
    weight = weight.float()
    scale = (weight.abs().amax(dim=1) / 127).clamp_min(1e-12)
    return (weight / scale[:, None]).round().to(torch.int8), scale


def prepare(linear: Linear, precision: Precision) -> nn.Module:
    """The form of a loaded layer that computes fastest at this precision on the weight's device."""
    if linear.weight.device.type == "cpu":
        return PanelLinear(linear, precision)
    return Int8Linear(linear) if precision == "int8" else linear
