"""Paged attention on one CPU core, fp32, through compiled kernels.

What they do not take (another dtype, a head or a block that is no multiple of eight) goes to the torch twin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from serving.attention import torch_paged
from serving.attention.cpu_copies import store
from serving.attention.cpu_kernel import attend
from serving.attention.cpu_shared import BROKEN
from serving.attention.cpu_vectors import LANES


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
    if not _taken(query, key_cache, value_cache):
        return torch_paged.paged_attention(
            query, key_cache, value_cache, block_tables, query_starts, context_lens, scale=scale, window=window
        )
    query = _in_rows(query)
    out = query.new_empty(query.shape)
    tables, starts, lens = block_tables.contiguous().numpy(), query_starts.numpy(), context_lens.numpy()
    blocks, kv_heads, block_size, head_dim = key_cache.shape
    assert starts[-1] == len(query), "addresses alone are handed over"
    assert len(starts) - 1 == len(lens) == len(tables)
    attended = attend(
        out.data_ptr(),
        query.data_ptr(),
        4 * query.stride(0),
        query.shape[1],
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        blocks,
        kv_heads,
        block_size,
        tables,
        starts,
        lens,
        scale,
        window,
        (0,) * (head_dim // LANES),
    )
    _check(attended, "a block table and a context that the cache holds")
    return out


def store_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """The same as torch_paged.store_kv."""
    if key.dtype != torch.float32 or not _taken(value, key_cache, value_cache):
        torch_paged.store_kv(key, value, key_cache, value_cache, slots)
        return
    key, value = _in_rows(key), _in_rows(value)
    blocks, kv_heads, block_size, head_dim = key_cache.shape
    assert key.shape == value.shape == (len(slots), kv_heads, head_dim), "addresses alone are handed over"
    stored = store(
        key.data_ptr(),
        4 * key.stride(0),
        value.data_ptr(),
        4 * value.stride(0),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        blocks,
        kv_heads,
        block_size,
        slots.numpy(),
        (0,) * (head_dim // LANES),
    )
    _check(stored, "slots that the cache has")


def _taken(rows: Tensor, key_cache: Tensor, value_cache: Tensor) -> bool:
    plain = rows.dtype == key_cache.dtype == value_cache.dtype == torch.float32
    whole = rows.shape[2] % LANES == 0 and key_cache.shape[2] % LANES == 0
    assert key_cache.shape == value_cache.shape
    return plain and whole and key_cache.is_contiguous() and value_cache.is_contiguous()


def _check(result: int, wanted: str) -> None:
    if result == BROKEN:
        raise IndexError(f"paged attention wants {wanted}")


def _in_rows(tensor: Tensor) -> Tensor:
    """The same tokens, each token's heads beside each other; a slice of a wider projection stays where it is."""
    return tensor if tensor.stride()[1:] == (tensor.shape[2], 1) else tensor.contiguous()
