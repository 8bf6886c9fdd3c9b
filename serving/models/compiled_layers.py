"""The layers of a decoder on one CPU core in compiled calls, without Python and torch between small products: one call
for all layers where one device has them and none has experts. For families with RMS norms and gated SiLU.

The same arithmetic in the same order as the modules of decoder.py, so that a sequence does not feel which one ran.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placement.compiled import compiled
from serving.attention.cpu_copies import store
from serving.attention.cpu_kernel import attend
from serving.attention.cpu_product import WIDTH
from serving.attention.cpu_shared import BROKEN, apart, entry_point
from serving.attention.cpu_vectors import LANES
from serving.engine.step import GenerateStep
from serving.models.compiled_experts import CompiledExperts, can_compile
from serving.models.compiled_experts import Room as ExpertRoom
from serving.models.decoder import Attention, Decoder, Experts, RmsNorm
from serving.models.linear import PanelLinear
from serving.models.panels import Panels, multiply
from serving.models.rope import Rotation
from serving.models.rows import add, gated_silu, rms_norm, rotate
from serving.parallel import Collectives

QKV, OUTPUT, UP, DOWN = range(4)


class Layers(NamedTuple):
    """Of all layers of a shard; L layers."""

    matrices: NDArray[np.int64]  # [L, 4, 5] as Panels.address; of a layer with experts only QKV and OUTPUT
    is_int8: int
    norms: NDArray[np.float32]  # [L, 2, hidden]
    head_norms: NDArray[np.float32]  # [L, 2, head size]; [0, 2, head size] where there are none
    windows: NDArray[np.int64]  # [L]
    heads: int
    kv_heads: int
    eps: float
    scale: float


class Cache(NamedTuple):
    """Keys and values of all layers, [L, 2, blocks, kv_heads, block_size, head size], and a step's place in them."""

    address: int
    bytes: int
    """Of the keys of one layer."""
    blocks: int
    block_size: int
    slots: Any
    tables: Any
    starts: Any
    lens: Any


class Room(NamedTuple):
    """What the layers of one step write into, [tokens, ...]."""

    normed: Any  # hidden
    qkv: Any  # [tokens, heads + 2 kv_heads, head size]
    seen: Any  # heads x head size
    up: Any
    gated: Any
    added: Any  # hidden


@entry_point
def run_layers(x: Any, layers: Any, cache: Any, room: Any, cos: Any, sin: Any, vectors: Any) -> int:
    """x [tokens, hidden] through all layers, in place; BROKEN where the cache has not what the step names."""
    for layer in range(len(layers.matrices)):
        if run_attention(layer, x, layers, cache, room, cos, sin, vectors) != 0:
            return BROKEN
        add(x, room.added)
        run_feedforward(layer, x, layers, room)
        add(x, room.added)
    return 0


@apart
def run_attention(layer: int, x: Any, layers: Any, cache: Any, room: Any, cos: Any, sin: Any, vectors: Any) -> int:
    """Keys and values of x into the cache; what attention adds to x, or this device's part of it, into `room.added`."""
    heads, kv_heads = layers.heads, layers.kv_heads
    qkv = room.qkv
    row_bytes, head_bytes = qkv.shape[1] * qkv.shape[2] * 4, qkv.shape[2] * 4
    rms_norm(x, layers.norms[layer, 0], layers.eps, room.normed)
    _multiply(room.normed, layers, layer, QKV, qkv)
    if len(layers.head_norms):
        for token in range(len(x)):
            queries, own = qkv[token, :heads], qkv[token, heads : heads + kv_heads]
            rms_norm(queries, layers.head_norms[layer, 0], layers.eps, queries)
            rms_norm(own, layers.head_norms[layer, 1], layers.eps, own)
    rotate(qkv, heads + kv_heads, cos, sin)
    query: Any = np.int64(qkv.ctypes.data)
    seen: Any = np.int64(room.seen.ctypes.data)
    key = query + heads * head_bytes
    keys = cache.address + 2 * layer * cache.bytes
    values = keys + cache.bytes
    blocks, size = cache.blocks, cache.block_size
    value = key + kv_heads * head_bytes
    if store(key, row_bytes, value, row_bytes, keys, values, blocks, kv_heads, size, cache.slots, vectors) == BROKEN:
        return BROKEN
    found = attend(
        seen,
        query,
        row_bytes,
        heads,
        keys,
        values,
        blocks,
        kv_heads,
        size,
        cache.tables,
        cache.starts,
        cache.lens,
        layers.scale,
        layers.windows[layer],
        vectors,
    )
    _multiply(room.seen, layers, layer, OUTPUT, room.added)
    return found


@apart
def run_feedforward(layer: int, x: Any, layers: Any, room: Any) -> None:
    """What the feedforward part adds to x, or this device's part of it, into `room.added`."""
    rms_norm(x, layers.norms[layer, 1], layers.eps, room.normed)
    _multiply(room.normed, layers, layer, UP, room.up)
    gated_silu(room.up, room.gated)
    _multiply(room.gated, layers, layer, DOWN, room.added)


@entry_point
def add_attention(layer: int, x: Any, layers: Any, cache: Any, room: Any, cos: Any, sin: Any, vectors: Any) -> int:
    """`run_attention` after `room.added` of the layer before is added."""
    add(x, room.added)
    return run_attention(layer, x, layers, cache, room, cos, sin, vectors)


@entry_point
def add_feedforward(layer: int, x: Any, layers: Any, room: Any) -> None:
    """`run_feedforward` after `room.added` of attention is added."""
    add(x, room.added)
    run_feedforward(layer, x, layers, room)


@compiled
def _multiply(x: Any, layers: Any, layer: int, which: int, y: Any) -> None:
    multiply(x, len(x), layers.matrices[layer, which], layers.is_int8, y)


class CompiledLayers:
    """The layers of a loaded decoder shard. Made by `compile_layers`."""

    def __init__(self, model: Decoder, windows: list[int]) -> None:
        sizes = model.config.sizes
        layers: list[Any] = list(model.layers)
        matrices: list[list[Panels]] = [_panels(layer) for layer in layers]
        attentions: list[Any] = [layer.attention for layer in layers]
        first: Attention = attentions[0]
        norms = [torch.stack((layer.first_norm.weight, layer.second_norm.weight)) for layer in layers]
        head_norms = [torch.stack((one.q_norm.weight, one.k_norm.weight)) for one in attentions if one.has_norms]
        self._layers = Layers(
            matrices=np.array([_addresses(row) for row in matrices], np.int64),
            is_int8=int(matrices[0][0].is_int8),
            norms=torch.stack(norms).detach().numpy().copy(),
            head_norms=(torch.stack(head_norms) if head_norms else torch.empty(0, 2, first.size)).detach().numpy(),
            windows=np.array(windows, np.int64),
            heads=first.heads,
            kv_heads=first.kv_heads,
            eps=model.config.norm_eps,
            scale=sizes.head_size**-0.5,
        )
        self._experts: list[CompiledExperts | None] = [
            CompiledExperts(layer.feedforward, norm[1], self._layers.eps) if _has_experts(layer) else None
            for layer, norm in zip(layers, self._layers.norms, strict=True)
        ]
        self._tensor = model.tensor
        self._vectors = (0,) * (sizes.head_size // LANES)
        up = max((row[UP].outputs for row in matrices if len(row) > DOWN), default=0)
        self._widths = sizes.hidden, first.size, up
        self._is_one_call = self._tensor.size == 1 and all(one is None for one in self._experts)
        self._kept = matrices
        self._room, self._expert_room = self._make_room(0), self._make_expert_room(0)

    def run(
        self, x: Tensor, turn: Rotation, step: GenerateStep, cache: Tensor, tensor: Collectives | None = None
    ) -> Tensor:
        """x [tokens, hidden], which is used up; cache as Cache says; `tensor` adds up instead of the model's own."""
        tensor = tensor or self._tensor
        _, _, blocks, _, block_size, _ = cache.shape
        address, layer_bytes = cache.data_ptr(), cache.stride(1) * 4
        arrays = step.slots, step.block_tables, step.query_starts, step.context_lens
        place = Cache(address, layer_bytes, blocks, block_size, *arrays)
        cos, sin = turn.cos[:, 0].numpy(), turn.sin[:, 0].numpy()
        room, expert_room = self._rooms_for(len(x))
        if self._is_one_call:
            _check(run_layers(x.numpy(), self._layers, place, room, cos, sin, self._vectors))
            return x
        rows, added = x.numpy(), torch.from_numpy(room.added)
        added.zero_()
        for layer, experts in enumerate(self._experts):
            _check(add_attention(layer, rows, self._layers, place, room, cos, sin, self._vectors))
            tensor.all_reduce(added)
            if experts is None:
                add_feedforward(layer, rows, self._layers, room)
            else:
                assert expert_room is not None
                experts.run(rows, room.added, expert_room)
            tensor.all_reduce(added)
        x += added
        return x

    def _rooms_for(self, tokens: int) -> tuple[Room, ExpertRoom | None]:
        """Parts of the largest ones so far, which are kept: new memory costs page faults."""
        if tokens > len(self._room.added):
            self._room, self._expert_room = self._make_room(tokens), self._make_expert_room(tokens)
        kept = self._expert_room
        if kept is not None and not all(one is None or one.fits(kept) for one in self._experts):
            kept = self._expert_room = self._make_expert_room(len(self._room.added))
        return Room(*(whole[:tokens] for whole in self._room)), None if kept is None else kept.first(tokens)

    def _make_room(self, tokens: int) -> Room:
        hidden, size, up = self._widths
        heads, kv_heads = self._layers.heads, self._layers.kv_heads
        shapes = (hidden,), (heads + 2 * kv_heads, size), (heads * size,), (up,), (up // 2,), (hidden,)
        return Room(*(np.empty((tokens, *shape), np.float32) for shape in shapes))

    def _make_expert_room(self, tokens: int) -> ExpertRoom | None:
        experts = next((one for one in self._experts if one is not None), None)
        return None if experts is None else experts.room(tokens)


def _check(found: int) -> None:
    assert found != BROKEN, "the step names blocks that the cache has not"


def _has_experts(layer: Any) -> bool:
    return isinstance(layer.feedforward, Experts)


def _panels(layer: Any) -> list[Panels]:
    attention, feedforward = layer.attention, layer.feedforward
    last = () if _has_experts(layer) else (feedforward.up, feedforward.down)
    return [linear.panels for linear in (attention.qkv, attention.output, *last)]


def _addresses(row: list[Panels]) -> list[tuple[int, int, int, int, int]]:
    """Of the matrices of a layer; nothing in the place of one that it has not."""
    return [panels.address for panels in row] + [(0, 0, 0, 0, 0)] * (DOWN + 1 - len(row))


def compile_layers(model: Decoder, windows: list[int]) -> CompiledLayers | None:
    """None for a model whose layers are of another kind, or not on a CPU."""
    size = model.config.sizes.head_size
    if size % LANES or model.config.rope is None or model.config.activation != "silu":
        return None
    linears = [linear for layer in model.layers for linear in _linears(layer)]
    # Outputs that do not fill the last panel would be written into rows longer than the next step reads.
    is_whole = all(isinstance(linear, PanelLinear) and linear.outputs % WIDTH == 0 for linear in linears)
    norms = all(isinstance(layer.first_norm, RmsNorm) for layer in model.layers)
    experts: list[Any] = [layer.feedforward for layer in model.layers if _has_experts(layer)]
    common = model.config.sizes.gated_ffn and all(can_compile(part) for part in experts)
    return CompiledLayers(model, windows) if is_whole and norms and common and len(model.layers) else None


def _linears(layer: Any) -> list[Any]:
    """Whose outputs others of a layer read; not the router, whose rows have room for a whole panel."""
    attention, feedforward = layer.attention, layer.feedforward
    dense = () if _has_experts(layer) else (feedforward.up, feedforward.down)
    return [attention.qkv, attention.output, *dense]
