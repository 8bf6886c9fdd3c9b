"""A step's keys and values into the paged cache on one core, fp32, compiled by numba.

Slots are checked: a wrong one would write over other memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from serving.attention.cpu_shared import BROKEN, entry_point
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
