"""Which experts the tokens of a prompt go to: the whole model on this process's CPU, prompt by prompt, no cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from moe.counter import RouteCounter
from placement.errors import InputError
from serving.models.config import read_config
from serving.models.decoder import Decoder, Experts
from serving.models.load import load_shard
from serving.models.shard import make_shard
from serving.text import Tokenizer


class RoutedDecoder:
    """A decoder with experts, from its directory."""

    def __init__(self, directory: Path) -> None:
        config = read_config(directory)
        if config.task != "generate" or not any(config.sizes.has_experts):
            raise InputError(f"{directory}: has no layers with experts")
        self._tokenizer = Tokenizer.from_directory(directory)
        model = load_shard(directory, config, make_shard(config.sizes, 1, 1, 0))
        assert isinstance(model, Decoder)
        self._model, self._config = model, config
        self._counters = {}
        for number, layer in enumerate(model.layers):
            if isinstance(layer.feedforward, Experts):
                self._counters[number] = layer.feedforward.counter = RouteCounter(config.sizes.experts, True)

    @property
    def experts(self) -> int:
        return self._config.sizes.experts

    @property
    def layers(self) -> list[int]:
        return list(self._counters)

    @torch.inference_mode()
    def routes(self, text: str) -> NDArray[Any]:
        """[tokens, layers with experts, top_k]; a prompt is cut where the model's positions end."""
        tokens = self._tokenizer.encode(text)[: self._config.max_positions]
        if tokens:
            self._model(torch.tensor(tokens), torch.arange(len(tokens)), self._attend)
        taken = [counter.take_routes().numpy() for counter in self._counters.values()]
        return np.stack(taken, axis=1)

    def _attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """One sequence, from its beginning."""
        window, at = self._config.windows[layer], torch.arange(len(query))
        behind = at[:, None] - at[None, :]
        sees = (behind >= 0) & (behind < window) if window else behind >= 0
        q, k, v = (part.transpose(0, 1) for part in (query, key, value))
        seen = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=sees, enable_gqa=True)
        return seen[0].transpose(0, 1)
