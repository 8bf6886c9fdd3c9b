"""Linear layers, plain and prepared for the device: packed for oneDNN, or int8 weights with a scale per row.

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


class PackedLinear(nn.Module):
    """fp32 on CPU: the weight lies as oneDNN wants it, so that no call has to rearrange it."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.outputs = linear.outputs
        bias = linear.bias
        self.bias = None if bias is None else bias.detach().clone()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous(), _USUAL_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return result


class Int8Linear(nn.Module):
    """Weights as int8 with one scale for each output.

    On CPU the activations of a row become 7-bit integers as well, scaled by the row's own largest: torch's kernel
    scales by the extremes of the whole input, so each row is brought to [-1, 1] and two constant columns, which
    meet zero weights, pin these extremes. Rows thus do not depend on each other.
    """

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.inputs, self.outputs = linear.inputs, linear.outputs
        weight = linear.weight.detach().float()
        self.scale = (weight.abs().amax(dim=1) / 127).clamp_min(1e-12)
        self.bias = None if linear.bias is None else linear.bias.detach().clone()
        self.on_cpu = weight.device.type == "cpu"
        if self.on_cpu:
            zeros = torch.zeros(self.outputs, dtype=torch.int64)
            padded = F.pad(weight, (0, 2))
            quantised = torch.quantize_per_channel(padded, self.scale.double(), zeros, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(quantised, None)
        else:
            self.weight = (weight / self.scale[:, None]).round().to(torch.int8)

    def forward(self, x: Tensor) -> Tensor:
        if self.on_cpu:
            peak = x.abs().amax(dim=-1, keepdim=True).clamp_min_(1e-12)
            ranged = F.pad(x / peak, (0, 2), value=1.0)
            ranged[:, -1] = -1.0
            y: Tensor = torch.ops.quantized.linear_dynamic(ranged, self.packed, True).mul_(peak)
        else:
            y = F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return y if self.bias is None else y.add_(self.bias)


_USUAL_ROWS = 32
"""The batch oneDNN lays the weights out for; any other works."""


def prepare(linear: Linear, precision: Precision) -> nn.Module:
    """The form of a loaded layer that computes fastest at this precision on the weight's device."""
    if precision == "int8":
        return Int8Linear(linear)
    if linear.weight.device.type == "cpu" and precision == "fp32" and torch.backends.mkldnn.is_available():
        return PackedLinear(linear)
    return linear
