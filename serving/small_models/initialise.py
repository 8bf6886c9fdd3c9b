"""First values of a model's parameters. Knows the names of parameters, not what computes with them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from serving.models.decoder import Decoder, RmsNorm
from serving.models.encoder import Encoder

_RESIDUAL = ("attention.output.weight", "down.weight", "experts.down")
"""What is added to the stream; scaled by the root of how often that happens, so that depth does not swell it."""


def initialise(model: Decoder | Encoder, generator: torch.Generator) -> None:
    """Norms start as the identity, biases at zero, all else normal, so that a matrix keeps the size of what it maps.

    A tied head becomes the embedding itself.
    """
    if isinstance(model, Decoder) and model.config.sizes.tied_embeddings:
        model.head.weight = model.embedding.weight
    spread = 1 / math.sqrt(model.config.sizes.hidden)
    scale = spread / math.sqrt(2 * len(model.layers))
    norms = {id(part) for module in model.modules() for part in _norm_weights(module)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if id(parameter) in norms:
                parameter.fill_(1.0)
            elif parameter.dim() == 1:
                parameter.zero_()
            else:
                parameter.normal_(0.0, scale if name.endswith(_RESIDUAL) else spread, generator=generator)


def _norm_weights(module: nn.Module) -> list[Tensor]:
    return [module.weight] if isinstance(module, nn.LayerNorm | RmsNorm) else []
