"""Attention of a chunk of queries of one sequence on one core: each kv head's keys and values are laid out as panels
once, and a few queries at a time are multiplied with those they may see.

A query's result depends on its own positions alone, not on the chunk it came in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from serving.attention.cpu_product import MOST_ROWS, WIDTH, multiply_near_block
from serving.attention.cpu_shared import LOG2E, apart, block_address, exp2, first_seen, inner
from serving.attention.cpu_vectors import LANES, VECTOR_BYTES, lay_column, lay_pieces, scale_row

LINE = WIDTH * 4
"""Bytes of a panel's row."""


@apart
def attend_chunk(
    out: Any,
    query: Any,
    query_stride: Any,
    heads: Any,
    cache: Any,
    s: Any,
    begin: Any,
    end: Any,
    context: Any,
    scale: Any,
    window: Any,
    vectors: Any,
) -> None:
    """Queries begin..end, the last of a context whose blocks the cache holds; a head is a multiple of WIDTH."""
    size, row = LANES * len(vectors), VECTOR_BYTES * len(vectors)
    low = first_seen(context - (end - begin), window)
    panels = (context - low + WIDTH - 1) // WIDTH
    keys = _lines(panels * size)
    values = _lines(panels * size)
    scores = _lines(MOST_ROWS * panels).reshape((MOST_ROWS, panels * WIDTH))
    totals = np.empty(MOST_ROWS, np.float32)
    scales, ones = np.full(WIDTH, np.float32(scale * LOG2E)), np.ones(WIDTH, np.float32)
    zeros = np.zeros(WIDTH, np.float32)
    key, value, score = np.int64(keys.ctypes.data), np.int64(values.ctypes.data), np.int64(scores.ctypes.data)
    by, one, nothing = np.int64(scales.ctypes.data), np.int64(ones.ctypes.data), np.int64(zeros.ctypes.data)
    score_stride, group = panels * LINE, heads // cache.kv_heads
    for h in range(heads):
        if h % group == 0:
            _lay_panels(cache, s, h // group, low, context, key, value, panels, vectors)
        for t in range(begin, end, MOST_ROWS):
            rows = min(MOST_ROWS, end - t)
            position = context - (end - t)
            stop = position + rows - low
            start = (first_seen(position, window) - low) // WIDTH * WIDTH
            at = query + t * query_stride + h * row
            for place in range(start, stop, WIDTH):
                panel, to = key + place * row, score + place * 4
                multiply_near_block(rows, at, query_stride, panel, size, by, nothing, to, score_stride, 0, 0)
            for r in range(rows):
                first = first_seen(position + r, window) - low
                totals[r] = _soften(scores[r], start, first, position + r + 1 - low, stop)
            at, to = score + start * 4, out + (t * heads + h) * row
            for column in range(0, size, WIDTH):
                panel = value + (column // WIDTH * panels * WIDTH + start) * LINE
                multiply_near_block(
                    rows, at, score_stride, panel, stop - start, one, nothing, to + column * 4, heads * row, 0, 0
                )
            for r in range(rows):
                mixed = to + r * heads * row
                scale_row(mixed, np.float32(1.0) / totals[r], mixed, vectors)


@apart
def _lines(count: Any) -> Any:
    """So many lines of WIDTH floats, each in one line of the caches: reading a vector that lies across two costs more,
    and where an allocation begins is a matter of what the process did before."""
    room = np.empty((count + 1) * WIDTH, np.float32)
    first = -np.int64(room.ctypes.data) % LINE // 4
    return room[first : first + count * WIDTH]


@inner
def _lay_panels(
    cache: Any, s: Any, h: Any, low: Any, stop: Any, key: Any, value: Any, panels: Any, vectors: Any
) -> None:
    """Keys low..stop of a kv head as [panels, head_dim, WIDTH], values as [head_dim / WIDTH, positions, WIDTH]."""
    row, block_size = VECTOR_BYTES * len(vectors), cache.block_size
    for position in range(low, stop):
        n, place = position // block_size, position - low
        offset = (h * block_size + position % block_size) * row
        to = key + place // WIDTH * WIDTH * row + place % WIDTH * 4
        lay_column(block_address(cache.keys, cache, s, n, vectors) + offset, to, LINE, vectors)
        to = value + place * LINE
        lay_pieces(block_address(cache.values, cache, s, n, vectors) + offset, to, panels * WIDTH * LINE, vectors)


@inner
def _soften(scores: Any, start: Any, first: Any, last: Any, stop: Any) -> Any:
    """Turn scores first..last into weights and those around them, start..stop, into zeros; returns their sum."""
    scores[start:first] = np.float32(0.0)
    scores[last:stop] = np.float32(0.0)
    seen = scores[first:last]  # counted from zero, so that the compiler makes vectors of the loops
    top = seen[0]
    for j in range(len(seen)):
        top = max(top, seen[j])
    total = np.float32(0.0)
    for j in range(len(seen)):
        weight = exp2(seen[j] - top)
        seen[j] = weight
        total += weight
    return total
