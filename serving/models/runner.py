"""Runs engine steps on one device's shard: the model, its caches, and sampling where the last stage ends.

Knows arrays of a step, not whose they are. Activations come from the stage before and go to the next outside of here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from moe.counter import RouteCounter
from placement.errors import InputError
from serving.attention import choose
from serving.engine.blocks import BLOCK_TOKENS
from serving.engine.step import GenerateResult, GenerateStep, PassResult, PassStep, Result
from serving.models.config import ModelConfig, why_no_graphs
from serving.models.decoder import Attend, Decoder, Experts
from serving.models.encoder import Encoder
from serving.models.graphs import Graphs, Recorder, StepTensors, cuda_recorder
from serving.models.linear import Precision
from serving.models.load import compute_dtype, load_shard
from serving.models.shard import Shard
from serving.parallel import Alone, Collectives
from serving.sampling.sampler import sample

if TYPE_CHECKING:
    from serving.models.compiled_layers import CompiledLayers


@dataclass(frozen=True)
class Ran:
    """What a stage hands on: activations for the next one, or the result on the last stage's first device."""

    activations: Tensor | None = None
    result: Result | None = None


class Runner(Protocol):
    """One model's shard on this device."""

    def run(self, step: Any, inputs: Tensor | None) -> Ran:
        """One step; `inputs` are the activations from the stage before, None in the first stage."""

    def warm(self) -> None:
        """Compile what the first steps will call, for this model's sizes; asks no other device, so may run at any time
        before the first step."""

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
    graphs: bool = False,
) -> Runner:
    """With `graphs`, decoding steps are recorded, where one device has a stage to itself."""
    reason = why_no_graphs(config, torch.device(device).type) if graphs else None
    if reason is not None:
        raise InputError(reason)
    model = load_shard(directory, config, shard, tensor=tensor, device=device, precision=precision)
    if isinstance(model, Decoder):
        recorder = cuda_recorder if graphs and shard.tp == 1 else None
        return GenerateRunner(model, blocks, device, compute_dtype(precision, device), recorder)
    return PassRunner(model, device)


class GenerateRunner:
    """A decoder's shard with its part of the key-value cache."""

    def __init__(
        self, model: Decoder, blocks: int, device: str, dtype: torch.dtype, recorder: Recorder | None = None
    ) -> None:
        sizes, shard = model.config.sizes, model.shard
        self.model, self.device = model, device
        self._attention = choose(torch.device(device).type)
        self._windows = [model.config.windows[layer] for layer in shard.layers]
        self._scale = sizes.head_size**-0.5
        kv_heads = sizes.kv_heads_per_device(shard.tp)
        self._cache_shape = (len(shard.layers), 2, blocks, kv_heads, BLOCK_TOKENS, sizes.head_size)
        self._dtype = dtype
        self._cache: Tensor | None = None
        self._counters = _count_routes(model)
        is_compiled = torch.device(device).type == "cpu" and recorder is None
        self._compiled = _compile(model, self._windows) if is_compiled else None
        self._graphs = None if recorder is None else self._make_graphs(recorder)
        self._take_cache()

    @torch.inference_mode()
    def run(self, step: GenerateStep, inputs: Tensor | None) -> Ran:
        if self._graphs is not None and self._graphs.can_run(step):
            return self._replay(self._graphs, step, inputs)
        hidden = self._hidden(step, inputs)
        if not self.model.shard.is_last:
            return Ran(activations=hidden)
        if step.sampling is None:
            return self._result(step, None)
        return self._result(step, self.model.logits(hidden[self._put(step.rows)]))

    def _hidden(self, step: GenerateStep, inputs: Tensor | None) -> Tensor:
        if self._compiled is None:
            return self._modules(self._tensors(step, inputs))
        assert self._cache is not None, "the model is suspended"
        tokens = inputs if inputs is not None else self._put(step.tokens)
        positions = self._put(step.positions)
        turn = self.model.rotation(positions)
        assert turn is not None
        x = self.model.embed(tokens, positions) if inputs is None else inputs.clone()
        return self._compiled.run(x, turn, step, self._cache)

    def _modules(self, tensors: StepTensors) -> Tensor:
        hidden: Tensor = self.model(tensors.inputs, tensors.positions, self._attend(tensors))
        return hidden

    def _replay(self, graphs: Graphs, step: GenerateStep, inputs: Tensor | None) -> Ran:
        rows = graphs.run(step, inputs)
        if not self.model.shard.is_last:
            return Ran(activations=rows.clone())  # it may be on its way while the next step is computed
        return self._result(step, None if step.sampling is None else rows[self._put(step.rows)])

    def _make_graphs(self, recorder: Recorder) -> Graphs:
        """Of all that a step computes here but sampling, which each request has its own way of."""
        assert self.model.tensor.size == 1, "sums over devices are not recorded"
        is_last, sizes = self.model.shard.is_last, self.model.config.sizes

        def work(tensors: StepTensors) -> Tensor:
            hidden = self._modules(tensors)
            logits = self.model.logits(hidden) if is_last else hidden
            assert logits is not None
            return logits

        width = -(-self.model.config.max_positions // BLOCK_TOKENS)
        activations = None if self.model.shard.is_first else (sizes.hidden, self._dtype)
        return Graphs(work, recorder, width, self.device, activations)

    @property
    def graph_sizes(self) -> list[int]:
        """Of the decoding steps that are recorded."""
        return [] if self._graphs is None else self._graphs.sizes

    @torch.inference_mode()
    def warm(self) -> None:
        assert self._cache is not None
        step = _first_token()
        if self.model.shard.is_first and self.model.shard.tp > 1:
            self.model.embedding.own(self._put(step.tokens))
        if self._compiled is None:
            heads, kv_heads = self.model.config.sizes.heads // self.model.shard.tp, self._cache_shape[3]
            qkv = torch.zeros(1, heads + 2 * kv_heads, self._cache_shape[5], dtype=self._dtype, device=self.device)
            self._attend(self._tensors(step, None))(0, *qkv.split([heads, kv_heads, kv_heads], dim=1))
            row = torch.zeros(1, self.model.config.sizes.hidden, dtype=self._dtype, device=self.device)
            for layer in self.model.layers:
                if isinstance(layer.feedforward, Experts):
                    layer.feedforward.warm(row)
            self.take_routes()
            if self._graphs is not None:
                self._graphs.record()
            return
        turn = self.model.rotation(self._put(step.positions))
        assert turn is not None
        self._compiled.run(torch.zeros(1, self.model.config.sizes.hidden), turn, step, self._cache, Alone())
        self.take_routes()

    def take_routes(self) -> dict[int, list[int]]:
        """For each layer with experts, how often each one was chosen since this was last asked."""
        return {layer: counter.take().tolist() for layer, counter in self._counters.items()}

    def take_route_steps(self) -> dict[int, list[list[int]]]:
        """The same of each of the last large steps."""
        return {layer: counter.take_steps().tolist() for layer, counter in self._counters.items()}

    def suspend(self) -> None:
        if self._graphs is not None:
            self._graphs.forget()
        self._cache = None
        self.model.to("cpu")

    @torch.inference_mode()
    def resume(self) -> None:
        self.model.to(self.device)
        self._take_cache()
        if self._graphs is not None:
            self._graphs.record()

    def _take_cache(self) -> None:
        self._cache = torch.empty(self._cache_shape, dtype=self._dtype, device=self.device)

    def _tensors(self, step: GenerateStep, inputs: Tensor | None) -> StepTensors:
        return StepTensors(
            inputs=inputs if inputs is not None else self._put(step.tokens),
            positions=self._put(step.positions),
            slots=self._put(step.slots),
            tables=self._put(step.block_tables),
            starts=self._put(step.query_starts),
            lens=self._put(step.context_lens),
        )

    def _attend(self, step: StepTensors) -> Attend:
        assert self._cache is not None, "the model is suspended"
        caches = [(layer[0], layer[1]) for layer in self._cache.unbind()]
        slots, tables, starts, lens = step.slots, step.tables, step.starts, step.lens
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


def _compile(model: Decoder, windows: list[int]) -> CompiledLayers | None:
    from serving.models.compiled_layers import compile_layers

    return compile_layers(model, windows)


def _count_routes(model: Decoder) -> dict[int, RouteCounter]:
    """A counter for each layer with experts, by the layer's number in the model."""
    counters = {}
    for number, layer in zip(model.shard.layers, model.layers, strict=True):
        if isinstance(layer.feedforward, Experts):
            counters[number] = layer.feedforward.counter = RouteCounter(model.config.sizes.experts)
    return counters


def _first_token() -> GenerateStep:
    """Of a sequence in the first block."""
    zero, one, place = np.zeros(1, np.int32), np.ones(1, np.int32), np.zeros(1, np.int64)
    starts = np.array([0, 1], np.int32)
    return GenerateStep(0, "", zero, zero, place, zero[None], starts, one, place[:0], None)


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

    def warm(self) -> None:
        pass

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
