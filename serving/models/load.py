"""From a model directory to one device's shard, ready to run: each device reads its own slices and nothing else."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from moe.experts import Experts
from placement.errors import InputError
from serving.models.checkpoint import Checkpoint
from serving.models.config import ModelConfig
from serving.models.decoder import Decoder
from serving.models.encoder import Encoder
from serving.models.expert_forms import prepare_experts
from serving.models.linear import Linear, Precision, prepare
from serving.models.names import Source, decoder_sources, encoder_sources
from serving.models.normed_linear import join_norms
from serving.models.shard import Shard
from serving.parallel import Collectives

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def shard_sources(config: ModelConfig, shard: Shard) -> dict[str, Source]:
    return decoder_sources(config, shard) if config.task == "generate" else encoder_sources(config, shard)


def make_model(config: ModelConfig, shard: Shard, tensor: Collectives | None = None) -> Decoder | Encoder:
    """The shard with parameters of the right sizes and no values yet."""
    return (Decoder if config.task == "generate" else Encoder)(config, shard, tensor)


def load_shard(
    directory: Path,
    config: ModelConfig,
    shard: Shard,
    *,
    tensor: Collectives | None = None,
    device: str = "cpu",
    precision: Precision = "fp32",
) -> Decoder | Encoder:
    """Read this device's slices. Each layer is prepared as it is read, so that no second copy of the model exists."""
    dtype = compute_dtype(precision, device)
    with torch.device("meta"):
        model = make_model(config, shard, tensor)
    checkpoint = Checkpoint(directory)
    sources = shard_sources(config, shard)
    for name, module in list(model.named_modules()):
        own = [(part, parameter.shape) for part, parameter in module.named_parameters(recurse=False)]
        for part, shape in own:
            source = sources.pop(f"{name}.{part}")
            # A device may be without any expert of a layer.
            value = checkpoint.read(source, dtype).view(shape) if source.pieces else torch.empty(shape, dtype=dtype)
            setattr(module, part, nn.Parameter(value.to(device), requires_grad=False))
        if isinstance(module, Linear):
            # Which experts a token goes to is decided at full precision: the router is tiny, and a flip is not.
            _replace(model, name, prepare(module, "fp32" if name.endswith(".router") else precision))
        elif isinstance(module, Experts):
            _replace(model, name, prepare_experts(module, precision))
    assert not sources, f"no parameter takes {sorted(sources)}"
    if isinstance(model, Decoder):
        join_norms(model)
    return model.eval()


def compute_dtype(precision: Precision, device: str) -> torch.dtype:
    """What activations and unquantised weights are in."""
    is_cpu = torch.device(device).type == "cpu"
    if precision == "int8":
        return torch.float32 if is_cpu else torch.bfloat16
    if is_cpu and precision != "fp32":
        raise InputError(f"precision {precision} is for GPUs; on CPU fp32 and int8 are served")
    return _DTYPES[precision]


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
