"""RMS norms joined with the int8 products that follow them, on a GPU: before queries, keys and values, before a dense
feedforward, before the vocabulary's head. What experts take is normed apart, since their router takes it too.
"""

from __future__ import annotations

from torch import Tensor, nn

from serving.models.decoder import Decoder, DecoderLayer, Feedforward, RmsNorm
from serving.models.linear import Int8Linear, Norm


class NormedLinear(nn.Module):
    """In one pass where that pays, else one after the other."""

    def __init__(self, norm: RmsNorm, linear: Int8Linear) -> None:
        super().__init__()
        self.norm, self.linear = norm, linear

    def forward(self, x: Tensor) -> Tensor:
        linear = self.linear
        if linear.pays(x):
            from serving.models.int8_product import multiply

            return multiply(x, linear.weight, linear.scale, linear.bias, Norm(self.norm.weight, self.norm.eps))
        y: Tensor = linear(self.norm(x))
        return y


def join_norms(model: Decoder) -> None:
    """Wherever both are there to be joined: the product takes its norm in, and nothing is left in the norm's place."""
    for layer in model.layers:
        assert isinstance(layer, DecoderLayer)
        _join(layer, "first_norm", layer.attention, "qkv")
        if isinstance(layer.feedforward, Feedforward):
            _join(layer, "second_norm", layer.feedforward, "up")
    if model.shard.is_last:
        _join(model, "norm", model, "head")


def _join(owner: nn.Module, norm_name: str, parent: nn.Module, name: str) -> None:
    norm, linear = getattr(owner, norm_name), getattr(parent, name)
    if isinstance(norm, RmsNorm) and isinstance(linear, Int8Linear):
        setattr(owner, norm_name, nn.Identity())
        setattr(parent, name, NormedLinear(norm, linear))
