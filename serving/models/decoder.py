"""The decoder of every family: one device's share of it. Knows nothing of caches, batches or where weights come from.

Tokens of all sequences of a step lie in one row, [tokens, hidden]; who sees whom is the business of `attend`.
Where a model is split by tensor, the sums over its devices are the only trace of it here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import moe.experts
from moe import steps
from moe.gate import Gate
from moe.layer import ExpertLayer
from moe.parallel.places import places_of
from moe.parallel.replicated import OwnPlaces
from placement.costs.transformer import TransformerConfig
from serving.models.config import Activation, ModelConfig
from serving.models.linear import Linear
from serving.models.rope import Rotation, is_plain, make_rotation, rotate
from serving.models.shard import Shard, expert_layer
from serving.parallel import Alone, Collectives

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer of this shard, query [tokens, heads, size], key, value [tokens, kv heads, size]) -> like query."""


class Decoder(nn.Module):
    """`forward` takes token ids in the first stage and activations in later ones; `logits` is for the last."""

    def __init__(self, config: ModelConfig, shard: Shard, tensor: Collectives | None = None) -> None:
        super().__init__()
        self.config, self.shard = config, shard
        tensor = tensor or Alone()
        sizes, bias = config.sizes, config.bias
        if shard.is_first:
            self.embedding = Embedding(config, shard, tensor)
            if config.rope is None:
                self.positions = nn.Embedding(sizes.positions, sizes.hidden)
        self.layers = nn.ModuleList(DecoderLayer(config, shard, layer, tensor) for layer in shard.layers)
        if shard.is_last:
            self.norm = make_norm(sizes.hidden, config.norm_eps, bias)
            self.head = Linear(sizes.hidden, -(-sizes.vocabulary // shard.tp), bias=False)
        self.tensor = tensor
        self.frequencies: Tensor | None = None

    def forward(self, inputs: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """inputs: token ids [tokens] in the first stage, else activations [tokens, hidden]; positions [tokens]."""
        x = self.embed(inputs, positions) if self.shard.is_first else inputs
        turn = self.rotation(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, turn, index, attend)
        return x

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Where the first stage begins: [tokens, hidden]."""
        x: Tensor = self.embedding(tokens)
        return x + self.positions(positions) if self.config.rope is None else x

    def logits(self, hidden: Tensor) -> Tensor | None:
        """[rows, vocabulary] of these rows of the last stage's activations, on the first device of the stage."""
        gathered = self.tensor.gather(self.head(self.norm(hidden)))
        return None if gathered is None else gathered[:, : self.config.sizes.vocabulary].float()

    def rotation(self, positions: Tensor) -> Rotation | None:
        if self.config.rope is None:
            return None
        if self.frequencies is None or self.frequencies.device != positions.device:
            self.frequencies = torch.from_numpy(self.config.rope.frequencies()).to(positions.device)
        return make_rotation(self.frequencies, positions)


class DecoderLayer(nn.Module):
    """Norm, attention, norm, feedforward, each added to what came in."""

    def __init__(self, config: ModelConfig, shard: Shard, layer: int, tensor: Collectives) -> None:
        super().__init__()
        hidden = config.sizes.hidden
        self.first_norm = make_norm(hidden, config.norm_eps, config.bias)
        self.attention = Attention(config, shard, tensor)
        self.second_norm = make_norm(hidden, config.norm_eps, config.bias)
        self.feedforward: nn.Module = (
            Experts(config, shard, layer, tensor)
            if config.sizes.has_experts[layer]
            else Feedforward(config, shard, config.sizes.ffn, tensor)
        )

    def forward(self, x: Tensor, turn: Rotation | None, index: int, attend: Attend) -> Tensor:
        x = x + self.attention(self.first_norm(x), turn, index, attend)
        y: Tensor = x + self.feedforward(self.second_norm(x))
        return y


class Attention(nn.Module):
    """Queries, keys and values of this device's heads, attended outside, and brought back to hidden size."""

    def __init__(self, config: ModelConfig, shard: Shard, tensor: Collectives) -> None:
        super().__init__()
        sizes = config.sizes
        self.size = sizes.head_size
        self.heads = sizes.heads // shard.tp
        self.kv_heads = sizes.kv_heads_per_device(shard.tp)
        self.qkv = Linear(sizes.hidden, (self.heads + 2 * self.kv_heads) * self.size, bias=config.qkv_bias)
        self.output = Linear(self.heads * self.size, sizes.hidden, bias=config.bias and shard.tp_rank == 0)
        self.has_norms = config.qk_norm
        if config.qk_norm:
            self.q_norm = make_norm(self.size, config.norm_eps, bias=False)
            self.k_norm = make_norm(self.size, config.norm_eps, bias=False)
        self.tensor = tensor

    def forward(self, x: Tensor, turn: Rotation | None, index: int, attend: Attend) -> Tensor:
        heads, kv_heads = self.heads, self.kv_heads
        qkv = self.qkv(x).view(-1, heads + 2 * kv_heads, self.size)
        if self.has_norms:
            query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
            qkv = torch.cat((self.q_norm(query), self.k_norm(key), value), dim=1)
        if turn is not None:
            qkv = rotate(qkv, heads + kv_heads, turn)
        query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
        seen = attend(index, query, key, value)
        y: Tensor = self.output(seen.reshape(-1, heads * self.size))
        self.tensor.all_reduce(y)
        return y


class Feedforward(nn.Module):
    """up, activation, down; with a gate where the family has one (the upper half of `up`)."""

    def __init__(self, config: ModelConfig, shard: Shard, width: int, tensor: Collectives) -> None:
        super().__init__()
        hidden, local = config.sizes.hidden, width // shard.tp
        self.is_gated = config.sizes.gated_ffn
        self.up = Linear(hidden, 2 * local if self.is_gated else local, bias=config.bias)
        self.down = Linear(local, hidden, bias=config.bias and shard.tp_rank == 0)
        self.activation = config.activation
        self.tensor = tensor

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x)
        y = gate(y, self.activation) if self.is_gated else steps.activate(y, self.activation)
        out: Tensor = self.down(y)
        self.tensor.all_reduce(out)
        return out


class Experts(ExpertLayer):
    """Each token goes to its top-k experts. This device has a slice of every expert, or, where they are placed, some
    experts whole; the sum over devices is whole either way."""

    def __init__(self, config: ModelConfig, shard: Shard, layer: int, tensor: Collectives) -> None:
        sizes = config.sizes
        held = shard.held_experts(sizes, layer)
        ffn = sizes.expert_ffn // shard.tp if shard.experts is None else sizes.expert_ffn
        super().__init__(
            Linear(sizes.hidden, sizes.experts, bias=False),
            Gate(sizes.top_k, normalise=config.normalise_experts),
            moe.experts.Experts(len(held), sizes.hidden, ffn, sizes.gated_ffn, config.activation),
        )
        if shard.experts is not None:
            self.place = own_places(sizes, shard, layer)
        self.tensor = tensor

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.tensor.all_reduce(y)
        return y

    def warm(self, x: Tensor) -> None:
        """Compile what the first tokens will call; asks no other device."""
        super().forward(x)


def own_places(sizes: TransformerConfig, shard: Shard, layer: int) -> OwnPlaces:
    """Where a device with placed experts finds those of a layer."""
    assert shard.experts is not None
    return OwnPlaces(places_of(shard.experts, expert_layer(sizes, layer)), shard.tp_rank)


class Embedding(nn.Module):
    """The vocabulary split over the devices of a stage: each looks up its own tokens, the sum is whole."""

    def __init__(self, config: ModelConfig, shard: Shard, tensor: Collectives) -> None:
        super().__init__()
        rows = -(-config.sizes.vocabulary // shard.tp)
        self.weight = nn.Parameter(torch.empty(rows, config.sizes.hidden))
        self.start = shard.tp_rank * rows
        self.tensor = tensor

    def forward(self, tokens: Tensor) -> Tensor:
        if self.tensor.size == 1:
            return F.embedding(tokens, self.weight)
        x = self.own(tokens)
        self.tensor.all_reduce(x)
        return x

    def own(self, tokens: Tensor) -> Tensor:
        """Of the tokens of this device's part; zeros for the others."""
        if is_plain(self.weight):
            from serving.models.rows import look_up

            x = self.weight.new_empty(len(tokens), self.weight.shape[1])
            look_up(tokens.numpy(), self.weight.detach().numpy(), self.start, x.numpy())
            return x
        local = tokens - self.start
        is_mine = (local >= 0) & (local < len(self.weight))
        return F.embedding(local.where(is_mine, 0), self.weight) * is_mine[:, None]


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.size, self.eps = size, eps

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and x.is_contiguous() and not torch.is_grad_enabled():
            from serving.models import fused_rows

            return fused_rows.rms_norm(x, self.weight, self.eps)
        if not is_plain(x):
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        from serving.models.rows import rms_norm

        flat = x.reshape(-1, self.size)
        y = torch.empty_like(flat)
        rms_norm(flat.numpy(), self.weight.detach().numpy(), self.eps, y.numpy())
        return y.view(x.shape)


def make_norm(size: int, eps: float, bias: bool) -> nn.Module:
    """A layer norm where the family has biases, else an RMS norm."""
    return nn.LayerNorm(size, eps) if bias else RmsNorm(size, eps)


def gate(up: Tensor, activation: Activation) -> Tensor:
    """The activation of the first half of up [tokens, 2 width] times its second half."""
    if activation == "silu" and is_plain(up) and up.is_contiguous():
        from serving.models.rows import gated_silu

        y = up.new_empty(len(up), up.shape[1] // 2)
        gated_silu(up.numpy(), y.numpy())
        return y
    return steps.gate(up, activation)
