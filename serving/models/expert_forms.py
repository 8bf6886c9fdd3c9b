"""The form of a layer's experts that computes fastest at a precision on the device of their weights."""

from __future__ import annotations

from torch import Tensor, nn

from moe.experts import Experts
from serving.models.linear import Precision, quantise


def prepare_experts(experts: Experts, precision: Precision) -> nn.Module:
    if experts.up.device.type == "cpu":
        from serving.models.panel_experts import PanelExperts, pack_expert

        pairs = zip(experts.up, experts.down, strict=True)
        return PanelExperts([pack_expert(up, down, precision) for up, down in pairs], experts)
    from moe.kernels.experts import TritonExperts

    if precision != "int8":
        return TritonExperts(experts)
    scales = []
    for name in ("up", "down"):
        small, scale = quantise_stack(getattr(experts, name).detach())
        setattr(experts, name, nn.Parameter(small, requires_grad=False))
        scales.append(scale)
    return TritonExperts(experts, *scales)


def quantise_stack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [slots, outputs, inputs]; a scale for each output of each slot."""
    small, scale = quantise(weight.flatten(0, 1))
    return small.view(weight.shape), scale.view(weight.shape[:2])
