"""Linear layers, plain and prepared for the device: on CPU in panels, in float32 or int8; on GPU int8 with scales.

`Linear` is what models are built of and what trains; `prepare` turns one into the form that serves fastest.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

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


class Norm(NamedTuple):
    """An RMS norm that comes before a product."""

    weight: Tensor
    eps: float


class Int8Linear(nn.Module):
    """On GPU: int8 weights, read as they are by a step of few tokens, widened for one of many."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.outputs = linear.outputs
        weight, scale = quantise(linear.weight.detach())
        bias = linear.weight.new_zeros(linear.outputs) if linear.bias is None else linear.bias.detach().clone()
        # Buffers, since they follow the model from the device and back to it. Some files hold weights transposed.
        for name, value in (("weight", weight.contiguous()), ("scale", scale), ("bias", bias)):
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        if self.pays(x):
            from serving.models.int8_product import multiply

            return multiply(x, self.weight, self.scale, self.bias)
        return multiply_int8(x, self.weight, self.scale, self.bias)

    def pays(self, x: Tensor) -> bool:
        """Whether the kernel is for this step."""
        if not x.is_cuda or torch.is_grad_enabled():
            return False
        from serving.models import int8_product

        return int8_product.pays(len(x))


def multiply_int8(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, norm: Norm | None = None) -> Tensor:
    """x [tokens, inputs], normed first where there is a norm, times weight [outputs, inputs] of int8; scale (fp32) and
    bias [outputs]."""
    if norm is not None:
        x = F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)
    return (F.linear(x, weight.to(x.dtype)) * scale + bias).to(x.dtype)


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
