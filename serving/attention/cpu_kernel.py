"""Attention of single queries over the paged cache on one core, fp32, compiled by numba.

A sequence's blocks are read once, in the order they lie in memory, all kv heads of a block after each other: a page
walk for each head's few kilobytes costs more than its arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

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


@entry_point
def decode(
    out: Any,
    query: Any,
    query_stride: int,
    key_cache: Any,
    value_cache: Any,
    tables: Any,
    starts: Any,
    lens: Any,
    scale: float,
    window: int,
    short: int,
    vectors: tuple[int, ...],
) -> int:
    """Attend for every sequence of at most `short` queries; returns how many others there are, or BROKEN.

    out [tokens, heads, head_dim]; query the same, flat, tokens a stride apart; `vectors` as in cpu_vectors.
    """
    heads, head_dim = out.shape[1], LANES * len(vectors)
    block_size = key_cache.shape[2]
    chunk = max(block_size, CHUNK // block_size * block_size)
    rows = key_cache.shape[1] * block_size
    scores = np.empty((heads, chunk), np.float32)
    scaled = np.empty((heads, head_dim), np.float32)
    mixed = np.empty((heads, head_dim), np.float32)
    highest = np.empty(heads, np.float32)
    total = np.empty(heads, np.float32)
    left = 0
    for s in range(len(lens)):
        begin, end = starts[s], starts[s + 1]
        if end - begin > short:
            left += 1
            continue
        for t in range(begin, end):
            stop = lens[s] - (end - 1 - t)
            first = max(0, stop - window) if window > 0 else 0
            if not _held(tables, s, first // block_size, stop, block_size, len(key_cache)):
                return BROKEN
            _begin(query, t * query_stride, np.float32(scale * _LOG2E), scaled, mixed, highest, total, vectors)
            for low in range(first // block_size * block_size, stop, chunk):
                high = min(low + chunk, stop)
                _score(scaled, scores, key_cache, value_cache, tables, s, low, high, vectors)
                ahead = _block(value_cache, tables, s, low // block_size)
                _soften(scores, mixed, highest, total, first - low, high - low, ahead, rows, vectors)
                _mix(scores, mixed, key_cache, value_cache, tables, s, low, high, stop, vectors)
            for h in range(heads):
                share = np.float32(1.0) / total[h]
                for d in range(head_dim):
                    out[t, h, d] = mixed[h, d] * share
    return left


@inner
def _held(tables: Any, s: int, block: int, stop: int, block_size: int, blocks: int) -> bool:
    """Whether the cache and the table have every block from `block` on that positions up to `stop` need."""
    last = (stop + block_size - 1) // block_size
    if stop < 1 or last > tables.shape[1]:
        return False
    for n in range(block, last):  # noqa: SIM110  (compiled)
        if tables[s, n] < 0 or tables[s, n] >= blocks:
            return False
    return True


@inner
def _begin(query: Any, at: int, scale: Any, scaled: Any, mixed: Any, highest: Any, total: Any, vectors: Any) -> None:
    for h in range(scaled.shape[0]):
        highest[h] = _LOWEST
        total[h] = np.float32(0.0)
        for d in range(LANES * len(vectors)):
            scaled[h, d] = query[at + h * LANES * len(vectors) + d] * scale
            mixed[h, d] = np.float32(0.0)


@inner
def _block(cache: Any, tables: Any, s: int, n: int) -> Any:
    """The address of a sequence's n-th block."""
    block_bytes = cache.shape[1] * cache.shape[2] * cache.shape[3] * 4
    return np.int64(cache.ctypes.data) + np.int64(tables[s, n]) * block_bytes


@inner
def _score(
    scaled: Any, scores: Any, keys: Any, values: Any, tables: Any, s: int, low: int, high: int, vectors: Any
) -> None:
    """Scores of positions low..high; those of the last block's tail are of no position and are left to be masked."""
    kv_heads, block_size, row = keys.shape[1], keys.shape[2], VECTOR_BYTES * len(vectors)
    group, stride = scores.shape[0] // kv_heads, scores.shape[1] * 4
    query, score = np.int64(scaled.ctypes.data), np.int64(scores.ctypes.data)
    for position in range(low, high, block_size):
        n = position // block_size
        at = _block(keys, tables, s, n)
        more = position + block_size < high
        after = _block(keys, tables, s, n + 1) if more else _block(values, tables, s, low // block_size)
        for h in range(kv_heads):
            first, last = h * group, h * group + group - 1
            ahead = at + block_size * row if h + 1 < kv_heads else after
            # With one query a key the hardware's own prefetching keeps up, but for the jump to the next block.
            asked = group > 1 or h + 1 == kv_heads
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
def _soften(
    scores: Any, mixed: Any, highest: Any, total: Any, begin: int, end: int, ahead: Any, rows: int, vectors: Any
) -> None:
    """Turn scores begin..end of a chunk into weights, against the highest score so far, and what was mixed with it;
    meanwhile the `rows` of values at `ahead` are on their way."""
    heads = scores.shape[0]
    halves, row = rows // HALF, VECTOR_BYTES * len(vectors)
    whole = (end + LANES - 1) // LANES * LANES
    for h in range(heads):
        for half in range(h * halves // heads, (h + 1) * halves // heads):
            prefetch(ahead + half * HALF * row, vectors)
        for j in range(begin):
            scores[h, j] = _LOWEST
        for j in range(end, whole):
            scores[h, j] = _LOWEST
        top = highest[h]
        for j in range(whole):
            top = max(top, scores[h, j])
        added = np.float32(0.0)
        for j in range(whole):
            weight = _exp2(scores[h, j] - top)
            scores[h, j] = weight
            added += weight
        if top == highest[h]:
            total[h] += added
        else:
            shrink = _exp2(highest[h] - top)
            highest[h] = top
            total[h] = total[h] * shrink + added
            for d in range(LANES * len(vectors)):
                mixed[h, d] *= shrink


@inner
def _exp2(x: Any) -> Any:
    x = max(x, np.float32(-126.0))
    whole = np.rint(x)
    f = x - whole
    fraction = ((((_C5 * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _C0
    power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
    return fraction * power.view(np.float32)


@inner
def _mix(
    scores: Any, mixed: Any, keys: Any, values: Any, tables: Any, s: int, low: int, high: int, stop: int, vectors: Any
) -> None:
    """Add the values of positions low..high, weighed, to each head's mix."""
    kv_heads, block_size, row = values.shape[1], values.shape[2], VECTOR_BYTES * len(vectors)
    group, stride = scores.shape[0] // kv_heads, scores.shape[1] * 4
    mix, weight = np.int64(mixed.ctypes.data), np.int64(scores.ctypes.data)
    for position in range(low, high, block_size):
        n = position // block_size
        at = _block(values, tables, s, n)
        following = min(n + 1, (stop - 1) // block_size)
        after = _block(values if position + block_size < high else keys, tables, s, following)
        rows = min(block_size, high - position)
        for h in range(kv_heads):
            first, last = h * group, h * group + group - 1
            ahead = at + block_size * row if h + 1 < kv_heads else after
            asked = group > 1 or h + 1 == kv_heads
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
