"""Copies between a step's tensors and the paged cache on one core, fp32, compiled by numba.

They check what they index with: a wrong slot or table would write over other memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from serving.attention.cpu_kernel import BROKEN, entry_point
from serving.attention.cpu_vectors import VECTOR_BYTES, scale_row


@entry_point
def store(
    key: int,
    key_stride: int,
    value: int,
    value_stride: int,
    keys: int,
    values: int,
    blocks: int,
    kv_heads: int,
    block_size: int,
    slots: Any,
    vectors: tuple[int, ...],
) -> int:
    """Put each token's key and value at its slot; BROKEN if the cache has not such a slot.

    Addresses of key and value [tokens, kv_heads, head_dim], tokens a stride of bytes apart, and of both caches.
    """
    row = VECTOR_BYTES * len(vectors)
    for t in range(len(slots)):
        slot = slots[t]
        if slot < 0 or slot >= blocks * block_size:
            return BROKEN
        to = (slot // block_size * kv_heads * block_size + slot % block_size) * row
        for h in range(kv_heads):
            at = to + h * block_size * row
            scale_row(key + t * key_stride + h * row, np.float32(1.0), keys + at, vectors)
            scale_row(value + t * value_stride + h * row, np.float32(1.0), values + at, vectors)
    return 0


@entry_point
def gather(cache: Any, tables: Any, sequence: int, out: Any, first: int) -> int:
    """Lay a sequence's positions from `first` on beside each other: out [kv_heads, positions, head_dim]."""
    blocks, kv_heads, block_size, head_dim = cache.shape
    if first < 0 or first + out.shape[1] > tables.shape[1] * block_size:
        return BROKEN
    at = first
    stop = first + out.shape[1]
    while at < stop:
        block, offset = tables[sequence, at // block_size], at % block_size
        if block < 0 or block >= blocks:
            return BROKEN
        rows = min(block_size - offset, stop - at)
        for h in range(kv_heads):
            for j in range(rows):
                for d in range(head_dim):
                    out[h, at - first + j, d] = cache[block, h, offset + j, d]
        at += rows
    return 0
