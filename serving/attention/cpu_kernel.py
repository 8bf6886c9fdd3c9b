"""Attention over the paged cache on one core, fp32, compiled by numba: single queries here, long chunks in cpu_chunk.

For single queries a sequence's blocks are read once, in the order they lie in memory, all kv heads of a block after
each other: a page walk for each head's few kilobytes costs more than its arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from serving.attention.cpu_chunk import attend_chunk
from serving.attention.cpu_product import WIDTH
from serving.attention.cpu_shared import (
    BROKEN,
    LOG2E,
    Cache,
    block_address,
    entry_point,
    exp2,
    first_seen,
    holds,
    inner,
)
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

CHUNK = 64  # positions whose scores are held at once
SHORT = 12  # a chunk of so few queries is faster one by one (measured)

_LOWEST = np.float32(-1e30)


class State(NamedTuple):
    """What is known so far of one token's heads, and the scores of the positions at hand."""

    query: Any  # [heads, head_dim], scaled
    scores: Any  # [heads, chunk]
    mixed: Any  # [heads, head_dim]: the values seen, weighed
    highest: Any  # [heads]
    total: Any  # [heads]: the sum of the weights


@entry_point
def attend(
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
    vectors: tuple[int, ...],
) -> int:
    """0, or BROKEN where the tables name positions that the cache has not.

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
    for s in range(len(lens)):
        begin, end = starts[s], starts[s + 1]
        if not holds(cache, s, first_seen(lens[s] - (end - begin), window), lens[s]):
            return BROKEN
        if end - begin > SHORT and len(vectors) * LANES % WIDTH == 0:
            attend_chunk(out, query, query_stride, heads, cache, s, begin, end, lens[s], scale, window, vectors)
            continue
        for t in range(begin, end):
            stop = lens[s] - (end - 1 - t)
            first = first_seen(stop - 1, window)
            _begin(state, query + t * query_stride, np.float32(scale * LOG2E), vectors)
            for low in range(first // block_size * block_size, stop, chunk):
                high = min(low + chunk, stop)
                _score(state, cache, s, low, high, vectors)
                _soften(state, first - low, high - low, cache, s, low // block_size, vectors)
                _mix(state, cache, s, low, high, stop, vectors)
            mixed = np.int64(state.mixed.ctypes.data)
            for h in range(heads):
                scale_row(mixed + h * row, np.float32(1.0) / state.total[h], out + (t * heads + h) * row, vectors)
    return 0


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
def _score(state: Any, cache: Any, s: int, low: int, high: int, vectors: Any) -> None:
    """Scores of positions low..high; those of the last block's tail are of no position and are left to be masked."""
    block_size, row = cache.block_size, VECTOR_BYTES * len(vectors)
    group, stride = len(state.total) // cache.kv_heads, state.scores.shape[1] * 4
    query, score = np.int64(state.query.ctypes.data), np.int64(state.scores.ctypes.data)
    for position in range(low, high, block_size):
        n = position // block_size
        at = block_address(cache.keys, cache, s, n, vectors)
        more = position + block_size < high
        base = cache.keys if more else cache.values
        after = block_address(base, cache, s, n + 1 if more else low // block_size, vectors)
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
    ahead, row = block_address(cache.values, cache, s, n, vectors), VECTOR_BYTES * len(vectors)
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
            weight = exp2(scores[h, j] - top)
            scores[h, j] = weight
            added += weight
        if top == state.highest[h]:
            state.total[h] += added
        else:
            shrink = exp2(state.highest[h] - top)
            state.highest[h] = top
            state.total[h] = state.total[h] * shrink + added
            for d in range(LANES * len(vectors)):
                state.mixed[h, d] *= shrink


@inner
def _mix(state: Any, cache: Any, s: int, low: int, high: int, stop: int, vectors: Any) -> None:
    """Add the values of positions low..high, weighed, to each head's mix."""
    block_size, row = cache.block_size, VECTOR_BYTES * len(vectors)
    group, stride = len(state.total) // cache.kv_heads, state.scores.shape[1] * 4
    mix, weight = np.int64(state.mixed.ctypes.data), np.int64(state.scores.ctypes.data)
    for position in range(low, high, block_size):
        n = position // block_size
        at = block_address(cache.values, cache, s, n, vectors)
        base = cache.values if position + block_size < high else cache.keys
        if position + block_size < stop:
            after = block_address(base, cache, s, n + 1, vectors)
        else:
            after = block_address(base, cache, min(s + 1, len(cache.tables) - 1), 0, vectors)
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
