"""Paged attention on GPUs in Triton: one kernel, by tiles of rows, a row being one query of one head of a group.

Decoding sequences take a tile each, prefill chunks as many as their queries need; where a tile's sequence begins is
found on the device, so that nothing is read back. Every sequence has at least one query.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from moe.kernels.tiles import tuned
from placement.errors import InputError

_NO_WINDOW = 2**31 - 1
_PART = 16  # heads of a group that one program serves
_LOG2E = tl.constexpr(1.4426950408889634)
_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@dataclass(frozen=True)
class Tile:
    """How one launch is cut: rows and keys of a tile, and what the compiler may use for it."""

    rows: int
    keys: int
    warps: int
    registers: int  # of a thread, at most (0: no bound); ptxas left alone spills a few to fit one more program


STAGES = 2
MAX_HEAD_DIM = 256


def tile(prefill: bool, head_dim: int, element_bytes: int, hip: bool = False) -> Tile:
    """The tile for a phase: what was found best on this GPU, or what is shipped. `hip`: for AMD's GPUs."""
    cut = tuned(tile_key(prefill, head_dim, element_bytes))
    return shipped_tile(prefill, head_dim, element_bytes, hip) if cut is None else Tile(*cut[:4])


def tile_key(prefill: bool, head_dim: int, element_bytes: int) -> str:
    size = next((size for size in (64, 128) if head_dim <= size), MAX_HEAD_DIM)
    return f"attention {'prefill' if prefill else 'decode'} {size} {element_bytes}"


def shipped_tile(prefill: bool, head_dim: int, element_bytes: int, hip: bool = False) -> Tile:
    """None spills a register (see kernel_report)."""
    if head_dim > MAX_HEAD_DIM:
        raise InputError(f"attention: no kernel for heads of {head_dim}; at most {MAX_HEAD_DIM}")
    if hip:  # 64 KiB of shared memory, and warps of 64
        if not prefill or element_bytes == 4:
            return Tile(16, 32 if head_dim <= 128 else 16, 4, 0)
        return Tile(32, 32, 4, 0) if head_dim <= 64 else Tile(64, 16, 4, 0)
    if element_bytes == 4 and head_dim > 128:
        return Tile(16, 32, 8, 255)
    if not prefill:
        return Tile(16, 64 if element_bytes == 2 and head_dim <= 128 else 32, 4, 168 if element_bytes == 2 else 255)
    warps = 4 if head_dim <= 64 else 8
    return Tile(32, 32, warps, 255) if element_bytes == 4 else Tile(64, 64 if head_dim <= 128 else 32, warps, 255)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int = 0,
) -> Tensor:
    """The same as torch_paged.paged_attention."""
    query = _in_rows(query)
    out = query.new_empty(query.shape)
    sequences, kv_heads = len(context_lens), key_cache.shape[1]
    arrays = (query, key_cache, value_cache, block_tables, query_starts, context_lens, out)
    numbers = (scale, window or _NO_WINDOW, sequences, block_tables.stride(0), query.stride(0))
    for prefill in (False, True) if len(query) > sequences else (False,):
        known = constants(prefill, query.shape[1] // kv_heads, key_cache.shape, query.dtype, is_hip())
        tiles = len(query) // known["QUERIES"] + sequences if prefill else sequences
        parts = triton.cdiv(known["GROUP"], known["PART"])
        attend[(tiles, kv_heads * parts)](
            *arrays, *numbers, **known, **options(prefill, query.shape[2], query.dtype, is_hip())
        )
    return out


def store_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """The same as torch_paged.store_kv."""
    if not len(key):
        return
    key, value = _in_rows(key), _in_rows(value)
    strides = key.stride(0), value.stride(0)
    store[(len(key),)](
        key, value, key_cache, value_cache, slots, *strides, **store_constants(key_cache.shape), enable_fp_fusion=True
    )


def is_hip() -> bool:
    return torch.version.hip is not None


def constants(
    prefill: bool, group: int, cache: tuple[int, ...], dtype: torch.dtype, hip: bool = False
) -> dict[str, Any]:
    """What is known when the attention kernel is compiled; `cache` is a cache's shape."""
    _, kv_heads, block_size, head_dim = cache
    cut = tile(prefill, head_dim, dtype.itemsize, hip)
    part = min(group, _PART)
    return {
        "PREFILL": prefill,
        "GROUP": group,
        "PART": part,
        "KV_HEADS": kv_heads,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "HEAD_PAD": max(16, triton.next_power_of_2(head_dim)),
        "ROWS": cut.rows,
        "QUERIES": cut.rows // part if prefill else 1,
        "KEYS": cut.keys,
        # The interpreter multiplies bf16 wrongly and without a word.
        "DOT": tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else _DTYPES[dtype],
        "PRECISION": "ieee" if hip else "tf32x3",
    }


def options(prefill: bool, head_dim: int, dtype: torch.dtype, hip: bool = False) -> dict[str, Any]:
    """How the compiler may run the attention kernel."""
    cut = tile(prefill, head_dim, dtype.itemsize, hip)
    bound = {"maxnreg": cut.registers} if cut.registers else {}
    return {"num_warps": cut.warps, "num_stages": STAGES, "enable_fp_fusion": True} | bound


def store_constants(cache: tuple[int, ...]) -> dict[str, int]:
    """What is known when the storing kernel is compiled."""
    _, kv_heads, block_size, head_dim = cache
    width = triton.next_power_of_2(kv_heads * head_dim)
    return {"KV_HEADS": kv_heads, "BLOCK_SIZE": block_size, "HEAD_DIM": head_dim, "WIDTH": width}


def _in_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride()[1:] == (tensor.shape[2], 1) else tensor.contiguous()


@triton.jit  # type: ignore[untyped-decorator]
def _sequence_of(tile_index: tl.tensor, starts: tl.tensor, sequences: tl.tensor, QUERIES: tl.constexpr) -> tl.tensor:
    """The last sequence whose first tile is not behind this one; sequence s begins at tile starts[s] // QUERIES + s."""
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) // QUERIES + middle <= tile_index:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["window", "sequences", "table_stride"])  # type: ignore[untyped-decorator]
def attend(
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    tables: tl.tensor,
    starts: tl.tensor,
    lens: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    sequences: tl.tensor,
    table_stride: tl.tensor,
    query_stride: tl.tensor,
    PREFILL: tl.constexpr,
    GROUP: tl.constexpr,
    PART: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DOT: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    PARTS: tl.constexpr = (GROUP + PART - 1) // PART
    kv_head = tl.program_id(1) // PARTS
    sequence = tl.program_id(0)
    earlier = 0  # queries of this sequence in earlier tiles
    if PREFILL:
        sequence = _sequence_of(tl.program_id(0), starts, sequences, QUERIES)
        earlier = (tl.program_id(0) - tl.load(starts + sequence) // QUERIES - sequence) * QUERIES
    begin = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - begin
    if (length > 1) != PREFILL or earlier >= length:
        return
    context = tl.load(lens + sequence)

    row = tl.arange(0, ROWS)
    number = earlier + row // PART
    head = tl.program_id(1) % PARTS * PART + row % PART  # of the group
    valid = (row < QUERIES * PART) & (number < length) & (head < GROUP)
    position = context - length + number
    column = tl.arange(0, HEAD_PAD)
    within = column < HEAD_DIM
    cell = (kv_head * GROUP + head)[:, None] * HEAD_DIM + column[None, :]
    token = (begin + number)[:, None]
    taken = valid[:, None] & within[None, :]
    q = tl.load(query + token * query_stride + cell, mask=taken, other=0.0).to(DOT)

    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HEAD_PAD], tl.float32)
    stop = tl.minimum(context, context - length + earlier + QUERIES)
    first = tl.maximum(0, context - length + earlier - window + 1)
    for low in range(first // KEYS * KEYS, stop, KEYS):
        at = low + tl.arange(0, KEYS)
        held = (at >= first) & (at < stop)  # what slid out of the window may be gone from the cache
        block = tl.load(tables + sequence * table_stride + at // BLOCK_SIZE, mask=held, other=0).to(tl.int64)
        base = ((block * KV_HEADS + kv_head) * BLOCK_SIZE + at % BLOCK_SIZE) * HEAD_DIM
        key = tl.load(key_cache + base[None, :] + column[:, None], mask=held[None, :] & within[:, None], other=0.0)
        scores = tl.dot(q, key.to(DOT), input_precision=PRECISION) * (scale * _LOG2E)
        behind = position[:, None] - at[None, :]
        seen = held[None, :] & (behind >= 0) & (behind < window)
        scores = tl.where(seen, scores, float("-inf"))
        top = tl.maximum(highest, tl.max(scores, 1))
        level = tl.where(top == float("-inf"), 0.0, top)  # a row that has seen nothing yet
        weights = tl.exp2(scores - level[:, None])
        shrink = tl.exp2(highest - level)
        total = total * shrink + tl.sum(weights, 1)
        highest = top
        value = tl.load(value_cache + base[:, None] + column[None, :], mask=held[:, None] & within[None, :], other=0.0)
        mixed = tl.dot(weights.to(DOT), value.to(DOT), mixed * shrink[:, None], input_precision=PRECISION)
    share = 1.0 / tl.where(total == 0.0, 1.0, total)
    cell += token * (KV_HEADS * GROUP * HEAD_DIM)
    tl.store(out + cell, (mixed * share[:, None]).to(out.dtype.element_ty), mask=taken)


@triton.jit  # type: ignore[untyped-decorator]
def store(
    key: tl.tensor,
    value: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    slots: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    cell = tl.arange(0, WIDTH)
    inside = cell < KV_HEADS * HEAD_DIM
    head = (slot // BLOCK_SIZE) * KV_HEADS + cell // HEAD_DIM
    to = (head * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM + cell % HEAD_DIM
    tl.store(key_cache + to, tl.load(key + token * key_stride + cell, mask=inside), mask=inside)
    tl.store(value_cache + to, tl.load(value + token * value_stride + cell, mask=inside), mask=inside)
