"""Copies between a step's tensors and the paged cache on one core, fp32, compiled by numba.

They check what they index with: a wrong slot or table would write over other memory.
"""

from __future__ import annotations

from typing import Any

from serving.attention.cpu_kernel import BROKEN, entry_point


@entry_point
def store(
    key: Any, key_stride: int, value: Any, value_stride: int, key_cache: Any, value_cache: Any, slots: Any
) -> int:
    """Put tokens' keys and values, flat, a stride apart, at their slots; BROKEN if the cache has not such a slot."""
    blocks, kv_heads, block_size, head_dim = key_cache.shape
    for t in range(len(slots)):
        slot = slots[t]
        if slot < 0 or slot >= blocks * block_size:
            return BROKEN
        block, offset = slot // block_size, slot % block_size
        for h in range(kv_heads):
            of_key, of_value = t * key_stride + h * head_dim, t * value_stride + h * head_dim
            for d in range(head_dim):
                key_cache[block, h, offset, d] = key[of_key + d]
                value_cache[block, h, offset, d] = value[of_value + d]
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
