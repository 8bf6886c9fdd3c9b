"""Runs engine steps on one device's shard: the model, its caches, and sampling where the last stage ends.

Knows arrays of a step, not whose they are. Activations come from the stage before and go to the next outside of here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from serving.attention import choose
from serving.engine.blocks import BLOCK_TOKENS
from serving.engine.step import GenerateResult, GenerateStep, PassResult, PassStep, Result
from serving.models.config import ModelConfig
from serving.models.decoder import Attend, Decoder
from serving.models.encoder import Encoder
from serving.models.linear import Precision
from serving.models.load import compute_dtype, load_shard
from serving.models.shard import Shard
from serving.parallel import Collectives
from serving.sampling.sampler import sample


@dataclass(frozen=True)
class Ran:
    """What a stage hands on: activations for the next one, or the result on the last stage's first device."""

    activations: Tensor | None = None
    result: Result | None = None


class Runner(Protocol):
    """One model's shard on this device."""

    def run(self, step: Any, inputs: Tensor | None) -> Ran:
        """One step; `inputs` are the activations from the stage before, None in the first stage."""

    def suspend(self) -> None:
        """Free the device: weights go to host memory, caches are given up."""

    def resume(self) -> None:
        """Take the device again; the cache comes back empty."""


def make_runner(
    directory: Path,
    config: ModelConfig,
    shard: Shard,
    *,
    blocks: int = 0,
    tensor: Collectives | None = None,
    device: str = "cpu",
    precision: Precision = "fp32",
) -> Runner:
    model = load_shard(directory, config, shard, tensor=tensor, device=device, precision=precision)
    if isinstance(model, Decoder):
        return GenerateRunner(model, blocks, device, compute_dtype(precision, device))
    return PassRunner(model, device)


class GenerateRunner:
    """A decoder's shard with its part of the key-value cache."""

    def __init__(self, model: Decoder, blocks: int, device: str, dtype: torch.dtype) -> None:
        sizes, shard = model.config.sizes, model.shard
        self.model, self.device = model, device
        self._attention = choose(torch.device(device).type)
        self._windows = [model.config.windows[layer] for layer in shard.layers]
        self._scale = sizes.head_size**-0.5
        kv_heads = sizes.kv_heads_per_device(shard.tp)
        self._cache_shape = (len(shard.layers), 2, blocks, kv_heads, BLOCK_TOKENS, sizes.head_size)
        self._dtype = dtype
        self._cache: Tensor | None = None
        self.resume()

    @torch.inference_mode()
    def run(self, step: GenerateStep, inputs: Tensor | None) -> Ran:
        tokens = inputs if inputs is not None else self._put(step.tokens)
        hidden = self.model(tokens, self._put(step.positions), self._attend(step))
        if not self.model.shard.is_last:
            return Ran(activations=hidden)
        if step.sampling is None:
            return self._result(step, None)
        return self._result(step, self.model.logits(hidden[self._put(step.rows)]))

    def suspend(self) -> None:
        self._cache = None
        self.model.to("cpu")

    def resume(self) -> None:
        self.model.to(self.device)
        self._cache = torch.empty(self._cache_shape, dtype=self._dtype, device=self.device)

    def _attend(self, step: GenerateStep) -> Attend:
        assert self._cache is not None, "the model is suspended"
        caches = [(layer[0], layer[1]) for layer in self._cache.unbind()]
        slots, tables = self._put(step.slots), self._put(step.block_tables)
        starts, lens = self._put(step.query_starts), self._put(step.context_lens)
        store, look = self._attention.store_kv, self._attention.paged_attention

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = caches[layer]
            store(key, value, keys, values, slots)
            window = self._windows[layer]
            return look(query, keys, values, tables, starts, lens, scale=self._scale, window=window)

        return attend

    def _result(self, step: GenerateStep, logits: Tensor | None) -> Ran:
        if step.sampling is None:
            nothing = np.zeros(0, np.int64)
            return Ran(result=GenerateResult(step.number, step.model, nothing, nothing.astype(bool)))
        if logits is None:
            return Ran()
        sampled = sample(logits, step.sampling)
        return Ran(result=GenerateResult(step.number, step.model, sampled.tokens, sampled.failed, sampled.logprobs))

    def _put(self, array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)


class PassRunner:
    """An encoder's shard."""

    def __init__(self, model: Encoder, device: str) -> None:
        self.model, self.device = model, device

    @torch.inference_mode()
    def run(self, step: PassStep, inputs: Tensor | None) -> Ran:
        tokens = inputs if inputs is not None else torch.from_numpy(step.tokens).to(self.device)
        positions = torch.from_numpy(step.positions).to(self.device)
        kinds = torch.from_numpy(step.kinds).to(self.device)
        hidden = self.model(tokens, positions, apart(step.starts.tolist()), kinds)
        if not self.model.shard.is_last:
            return Ran(activations=hidden)
        if self.model.shard.tp_rank > 0:
            return Ran()
        values = self.model.answer(hidden, torch.from_numpy(step.starts).to(self.device))
        return Ran(result=PassResult(step.number, step.model, values.float().cpu().numpy()))

    def suspend(self) -> None:
        self.model.to("cpu")

    def resume(self) -> None:
        self.model.to(self.device)


def apart(starts: list[int]) -> Attend:
    """Each sequence sees all of itself and nothing else."""
    lengths = [stop - start for start, stop in pairwise(starts)]

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = zip(*(part.split(lengths) for part in (query, key, value)), strict=True)
        seen = [
            F.scaled_dot_product_attention(*(part.transpose(0, 1)[None] for part in one))[0].transpose(0, 1)
            for one in parts
        ]
        return seen[0] if len(seen) == 1 else torch.cat(seen)

    return attend
