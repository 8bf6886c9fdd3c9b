"""A model with parallel experts, trained on several devices: each has tokens of its own, gradients come out averaged.

The same gradients as plain data-parallel training of the whole model, on devices that each hold some of its experts.
"""

from __future__ import annotations

from torch import Tensor, nn

from moe.training.experts import ParallelExperts
from moe.training.gradients import ChunkedGradients
from moe.training.groups import Groups
from moe.training.wire import Carrier, Stream

CHUNK_BYTES = 1 << 20
"""What tokens may have to wait for: about a millisecond at 10 Gbit/s."""


class ExpertParallel:
    """`model` is on this rank as a whole but for its experts, which are ParallelExperts; other parameters are equal on
    all ranks. Call `backward` instead of the loss's own, then let any optimizer step. All ranks must use the same
    parameters in a step: they wait for each other's gradients."""

    def __init__(self, model: nn.Module, groups: Groups, wire: Carrier, chunk_bytes: int = CHUNK_BYTES) -> None:
        layers = [module for module in model.modules() if isinstance(module, ParallelExperts)]
        own = {id(parameter) for layer in layers for parameter in layer.parameters()}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        share = 1 / groups.world.size
        # The gradients of an expert are a sum over its row's tokens already.
        self._parts = [
            ChunkedGradients(
                [parameter for parameter in trained if (id(parameter) in own) == is_own],
                group,
                wire,
                stream,
                chunk_bytes=chunk_bytes,
                share=share,
            )
            for is_own, group, stream in (
                (False, groups.world, Stream.GRADIENTS),
                (True, groups.column, Stream.EXPERT_GRADIENTS),
            )
        ]

    def backward(self, loss: Tensor) -> None:
        """Leaves in each parameter's `grad` the mean over ranks of the gradients of their losses."""
        for part in self._parts:
            part.begin()
        loss.backward()
        for part in self._parts:
            part.end()
        for part in self._parts:
            part.wait()
