"""A model that has been made, as the files of its directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from serving.models.checkpoint import stored_tensors
from serving.models.config import ModelConfig, parse_config
from serving.models.decoder import Decoder
from serving.models.encoder import Encoder
from serving.models.load import make_model, shard_sources
from serving.models.shard import make_shard
from serving.small_models.initialise import initialise
from serving.small_models.tokenizer import json_bytes


@dataclass(frozen=True)
class Made:
    """`measures` are what it was found to be worth; `files` are all but its manifest."""

    parameters: int
    files: dict[str, bytes]
    measures: dict[str, Any] = field(default_factory=dict)


def new_model(config: dict[str, Any], generator: torch.Generator) -> Decoder | Encoder:
    """The whole model that a config.json describes, with its first values."""
    parsed = parse_config(config, "config.json")
    model = make_model(parsed, make_shard(parsed.sizes, 1, 1, 0))
    initialise(model, generator)
    return model


def model_files(
    config: dict[str, Any], model: Decoder | Encoder, more: dict[str, Tensor] | None = None
) -> dict[str, bytes]:
    """config.json and model.safetensors; `more` are stored tensors that the model does not compute with."""
    tensors = whole_tensors(model.config, model) | (more or {})
    weights = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, {"format": "pt"})
    return {"config.json": json_bytes(config), "model.safetensors": weights}


def whole_tensors(config: ModelConfig, model: Decoder | Encoder) -> dict[str, Tensor]:
    return stored_tensors(model.state_dict(), shard_sources(config, model.shard))


def parameter_count(model: Decoder | Encoder) -> int:
    """A tied head counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
