"""Attention of single queries over the paged cache on one core, fp32, compiled by numba.

A sequence's blocks are read once, in the order they lie in memory, all kv heads of a block after each other: a page
walk for each head's few kilobytes costs more than its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

import placement.compiled  # noqa: F401  (decides where compiled code is kept)
from serving.attention.cpu_vectors import (
    HALF,
    LANES,
    VECTOR_BYTES,
    mix_one,
    mix_one_key,
    mix_two,
    prefetch,
    scale_row,
    score_one,
    score_two,
)

F = TypeVar("F", bound=Callable[..., object])

CHUNK = 64  # positions whose scores are held at once
BROKEN = -1  # a block or slot that the cache does not have

_OPTIONS: Any = {"nogil": True, "fastmath": True, "error_model": "numpy", "boundscheck": False}
_INNER = _OPTIONS | {"forceinline": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

_LOWEST = np.float32(-1e30)
_LOG2E = 1.4426950408889634
# 2**f for f in -0.5..0.5, to 7.5e-8 of its value.
_POLYNOMIAL = (1.00000007, 0.693146967, 0.240221197, 0.0555071328, 0.00967554154, 0.00132764717)
_C0, _C1, _C2, _C3, _C4, _C5 = (np.float32(c) for c in _POLYNOMIAL)


def inner(function: F) -> F:
    return cast(F, numba.njit(**_INNER)(function))


def entry_point(function: F) -> F:
    return cast(F, numba.njit(cache=True, **_OPTIONS)(function))


class Cache(NamedTuple):
    """Both caches of a layer: their addresses, blocks [kv_heads, block_size, head_dim], and where sequences lie."""

    keys: int
    values: int
    blocks: int
    kv_heads: int
    block_size: int
    tables: Any


class State(NamedTuple):
    """What is known so far of one token's heads, and the scores of the positions at hand."""

    query: Any  # [heads, head_dim], scaled
    scores: Any  # [heads, chunk]
    mixed: Any  # [heads, head_dim]: the values seen, weighed
    highest: Any  # [heads]
    total: Any  # [heads]: the sum of the weights


@entry_point
def decode(
    out: int,
    query: int,
    query_stride: int,
    heads: int,
    keys: int,
    values: int,
    blocks: int,
    kv_heads: int,
    block_size: int,
    tables: Any,
    starts: Any,
    lens: Any,
    scale: float,
    window: int,
    short: int,
    vectors: tuple[int, ...],
) -> int:
    """Attend for every sequence of at most `short` queries; returns how many others there are, or BROKEN.

    Addresses of out and query [tokens, heads, head_dim], the tokens of query a stride of bytes apart.
    """
    cache = Cache(keys, values, blocks, kv_heads, block_size, tables)
    chunk = max(block_size, CHUNK // block_size * block_size)
    row = VECTOR_BYTES * len(vectors)
    state = State(
        np.empty((heads, LANES * len(vectors)), np.float32),
        np.empty((heads, chunk), np.float32),
        np.empty((heads, LANES * len(vectors)), np.float32),
        np.empty(heads, np.float32),
        np.empty(heads, np.float32),
    )
    left = 0
    for s in range(len(lens)):
        begin, end = starts[s], starts[s + 1]
        if end - begin > short:
            left += 1
            continue
        for t in range(begin, end):
            stop = lens[s] - (end - 1 - t)
            first = max(0, stop - window) if window > 0 else 0
            if not _holds(cache, s, first, stop):
                return BROKEN
            _begin(state, query + t * query_stride, np.float32(scale * _LOG2E), vectors)
            for low in range(first // block_size * block_size, stop, chunk):
                high = min(low + chunk, stop)
                _score(state, cache, s, low, high, vectors)
                _soften(state, first - low, high - low, cache, s, low // block_size, vectors)
                _mix(state, cache, s, low, high, stop, vectors)
            mixed = np.int64(state.mixed.ctypes.data)
            for h in range(heads):
                scale_row(mixed + h * row, np.float32(1.0) / state.total[h], out + (t * heads + h) * row, vectors)
    return left


@inner
def _holds(cache: Any, s: int, first: int, stop: int) -> bool:
    """Whether the table and the cache have every block of positions first..stop."""
    last = (stop + cache.block_size - 1) // cache.block_size
    if stop < 1 or last > cache.tables.shape[1]:
        return False
    for n in range(first // cache.block_size, last):
        if cache.tables[s, n] < 0 or cache.tables[s, n] >= cache.blocks:
            return False
    return True


@inner
def _begin(state: Any, query: Any, scale: Any, vectors: Any) -> None:
    scaled, row = np.int64(state.query.ctypes.data), VECTOR_BYTES * len(vectors)
    for h in range(len(state.total)):
        state.highest[h] = _LOWEST
        state.total[h] = np.float32(0.0)
        scale_row(query + h * row, scale, scaled + h * row, vectors)
        for d in range(LANES * len(vectors)):
            state.mixed[h, d] = np.float32(0.0)


@inner
def _block(base: Any, cache: Any, s: int, n: int, vectors: Any) -> Any:
    """The address of a sequence's n-th block, of keys or of values."""
    block_bytes = cache.kv_heads * cache.block_size * VECTOR_BYTES * len(vectors)
    return base + np.int64(cache.tables[s, n]) * block_bytes


@inner
def _score(state: Any, cache: Any, s: int, low: int, high: int, vectors: Any) -> None:
    """Scores of positions low..high; those of the last block's tail are of no position and are left to be masked."""
    block_size, row = cache.block_size, VECTOR_BYTES * len(vectors)
    group, stride = len(state.total) // cache.kv_heads, state.scores.shape[1] * 4
    query, score = np.int64(state.query.ctypes.data), np.int64(state.scores.ctypes.data)
    for position in range(low, high, block_size):
        n = position // block_size
        at = _block(cache.keys, cache, s, n, vectors)
        more = position + block_size < high
        base = cache.keys if more else cache.values
        after = _block(base, cache, s, n + 1 if more else low // block_size, vectors)
        for h in range(cache.kv_heads):
            first, last = h * group, h * group + group - 1
            ahead = at + block_size * row if h + 1 < cache.kv_heads else after
            # With one query a key the hardware's own prefetching keeps up, but for the jump to the next block.
            asked = group > 1 or h + 1 == cache.kv_heads
            for j in range(0, min(block_size, high - position), LANES):
                to = score + (position - low + j) * 4
                for half in range(j, j + LANES, HALF):
                    if asked:
                        prefetch(ahead + half * row, vectors)
                    for g in range(first, last, 2):
                        score_two(query + g * row, stride, at + half * row, to + g * stride + (half - j) * 4, vectors)
                if group % 2:
                    score_one(query + last * row, stride, at + j * row, to + last * stride, vectors)
            at += block_size * row


@inner
def _soften(state: Any, begin: int, end: int, cache: Any, s: int, n: int, vectors: Any) -> None:
    """Turn scores begin..end of a chunk into weights, against the highest score so far, and what was mixed with it;
    meanwhile the values of the sequence's n-th block are on their way."""
    scores, heads = state.scores, len(state.total)
    ahead, row = _block(cache.values, cache, s, n, vectors), VECTOR_BYTES * len(vectors)
    halves = cache.kv_heads * cache.block_size // HALF
    whole = (end + LANES - 1) // LANES * LANES
    for h in range(heads):
        for half in range(h * halves // heads, (h + 1) * halves // heads):
            prefetch(ahead + half * HALF * row, vectors)
        for j in range(begin):
            scores[h, j] = _LOWEST
        for j in range(end, whole):
            scores[h, j] = _LOWEST
        top = state.highest[h]
        for j in range(whole):
            top = max(top, scores[h, j])
        added = np.float32(0.0)
        for j in range(whole):
            weight = _exp2(scores[h, j] - top)
            scores[h, j] = weight
            added += weight
        if top == state.highest[h]:
            state.total[h] += added
        else:
            shrink = _exp2(state.highest[h] - top)
            state.highest[h] = top
            state.total[h] = state.total[h] * shrink + added
            for d in range(LANES * len(vectors)):
                state.mixed[h, d] *= shrink


@inner
def _exp2(x: Any) -> Any:
    x = max(x, np.float32(-126.0))
    whole = np.rint(x)
    f = x - whole
    fraction = ((((_C5 * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _C0
    power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
    return fraction * power.view(np.float32)


@inner
def _mix(state: Any, cache: Any, s: int, low: int, high: int, stop: int, vectors: Any) -> None:
    """Add the values of positions low..high, weighed, to each head's mix."""
    block_size, row = cache.block_size, VECTOR_BYTES * len(vectors)
    group, stride = len(state.total) // cache.kv_heads, state.scores.shape[1] * 4
    mix, weight = np.int64(state.mixed.ctypes.data), np.int64(state.scores.ctypes.data)
    for position in range(low, high, block_size):
        n = position // block_size
        at = _block(cache.values, cache, s, n, vectors)
        base = cache.values if position + block_size < high else cache.keys
        if position + block_size < stop:
            after = _block(base, cache, s, n + 1, vectors)
        else:
            after = _block(base, cache, min(s + 1, len(cache.tables) - 1), 0, vectors)
        rows = min(block_size, high - position)
        for h in range(cache.kv_heads):
            first, last = h * group, h * group + group - 1
            ahead = at + block_size * row if h + 1 < cache.kv_heads else after
            asked = group > 1 or h + 1 == cache.kv_heads
            of = weight + (position - low) * 4
            tiled = rows // LANES * LANES
            for j in range(0, tiled, LANES):
                if asked:
                    prefetch(ahead + j * row, vectors)
                    prefetch(ahead + (j + HALF) * row, vectors)
                for g in range(first, last, 2):
                    mix_two(of + g * stride + j * 4, stride, at + j * row, mix + g * row, vectors)
                if group % 2:
                    mix_one(of + last * stride + j * 4, stride, at + j * row, mix + last * row, vectors)
            for j in range(tiled, rows):  # what lies behind the last position may be anything, even no number
                for g in range(first, last + 1):
                    mix_one_key(of + g * stride + j * 4, stride, at + j * row, mix + g * row, vectors)
            at += block_size * row
