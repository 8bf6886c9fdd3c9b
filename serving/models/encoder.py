"""The BERT encoder: one device's share of it, for embeddings and classification. Like the decoder, it takes the tokens
of all sequences in one row; `attend` keeps sequences apart.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from serving.models.config import ModelConfig
from serving.models.decoder import Attend, Attention, Embedding, Feedforward, make_norm
from serving.models.linear import Linear
from serving.models.shard import Shard
from serving.parallel import Alone, Collectives


class Encoder(nn.Module):
    """`forward` takes token ids in the first stage and activations in later ones; `answer` is for the last."""

    def __init__(self, config: ModelConfig, shard: Shard, tensor: Collectives | None = None) -> None:
        super().__init__()
        self.config, self.shard = config, shard
        tensor = tensor or Alone()
        sizes = config.sizes
        if shard.is_first:
            self.embedding = Embedding(config, shard, tensor)
            self.positions = nn.Embedding(sizes.positions, sizes.hidden)
            self.kinds = nn.Embedding(2, sizes.hidden)
            self.embedding_norm = make_norm(sizes.hidden, config.norm_eps, bias=True)
        self.layers = nn.ModuleList(EncoderLayer(config, shard, tensor) for _ in shard.layers)
        if shard.is_last and config.task == "classify":
            self.pooler = Linear(sizes.hidden, sizes.hidden, bias=True)
            self.classifier = Linear(sizes.hidden, len(config.labels), bias=True)

    def forward(self, inputs: Tensor, positions: Tensor, attend: Attend, kinds: Tensor | None = None) -> Tensor:
        """kinds [tokens]: 1 for the tokens of a second sentence; all 0 where absent."""
        x = inputs
        if self.shard.is_first:
            second = torch.zeros_like(inputs) if kinds is None else kinds
            x = self.embedding_norm(self.embedding(inputs) + self.positions(positions) + self.kinds(second))
        for index, layer in enumerate(self.layers):
            x = layer(x, index, attend)
        return x

    def answer(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """One row for each sequence; its tokens are hidden[starts[i] : starts[i + 1]].

        Classification: a score for each label. Embedding: the mean over tokens, scaled to length one.
        """
        if self.config.task == "classify":
            scores: Tensor = self.classifier(self.pooler(hidden[starts[:-1]]).tanh())
            return scores
        lengths = starts.diff()
        owner = torch.repeat_interleave(torch.arange(len(lengths), device=hidden.device), lengths)
        sums = hidden.new_zeros(len(lengths), hidden.shape[1]).index_add_(0, owner, hidden)
        return nn.functional.normalize(sums / lengths[:, None], dim=1)


class EncoderLayer(nn.Module):
    """Attention and feedforward, each added to what came in and then normed."""

    def __init__(self, config: ModelConfig, shard: Shard, tensor: Collectives) -> None:
        super().__init__()
        hidden, eps = config.sizes.hidden, config.norm_eps
        self.attention = Attention(config, shard, tensor)
        self.first_norm = make_norm(hidden, eps, bias=True)
        self.feedforward = Feedforward(config, shard, config.sizes.ffn, tensor)
        self.second_norm = make_norm(hidden, eps, bias=True)

    def forward(self, x: Tensor, index: int, attend: Attend) -> Tensor:
        x = self.first_norm(x + self.attention(x, None, index, attend))
        y: Tensor = self.second_norm(x + self.feedforward(x))
        return y
