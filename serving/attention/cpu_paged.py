"""Paged attention on one CPU core, fp32: single queries through a compiled kernel, prefill chunks through torch's SDPA.

What the kernel does not take (another dtype, a head or a block that is no multiple of eight) goes to the torch twin.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from serving.attention import torch_paged
from serving.attention.cpu_copies import gather, store
from serving.attention.cpu_kernel import BROKEN, decode
from serving.attention.cpu_vectors import LANES

SHORT = 12  # a chunk of so few queries is faster one by one than gathered (measured)
PIECE = 64  # queries that go to SDPA at once: it computes what the mask hides (measured: 1.6 x on 512 tokens)


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
    left = decode(
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
        SHORT,
        (0,) * (head_dim // LANES),
    )
    _check(left, "a block table and a context that the cache holds")
    for sequence in range(len(lens)) if left else ():
        begin, end, context = int(starts[sequence]), int(starts[sequence + 1]), int(lens[sequence])
        if end - begin > SHORT:
            first = max(0, context - (end - begin) - window + 1) if window else 0
            key, value = _scratch.take((2, kv_heads, context - first, head_dim))
            for cache, near in ((key_cache, key), (value_cache, value)):
                gathered = gather(cache.numpy(), tables, sequence, near.numpy(), first)
                _check(gathered, "a block table that the cache holds")
            _prefill(query[begin:end], key, value, out[begin:end], scale, window)
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


class _Scratch(threading.local):
    """Memory that a thread keeps: new memory costs ten times what is copied there, one page fault at a time."""

    held: Tensor = torch.empty(0)

    def take(self, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape)
        if self.held.numel() < size:
            self.held = torch.empty(size)
        return self.held[:size].view(shape)


_scratch = _Scratch()


def _prefill(query: Tensor, key: Tensor, value: Tensor, out: Tensor, scale: float, window: int) -> None:
    """Attention of a chunk [queries, heads, head_dim], the last of the gathered positions, in pieces."""
    queries, heads, head_dim = query.shape
    kv_heads, positions, _ = key.shape
    by_group = (queries, kv_heads, heads // kv_heads, head_dim)
    query, out = query.view(by_group).permute(1, 2, 0, 3), out.view(by_group).permute(1, 2, 0, 3)
    key, value = (each[:, None].expand(-1, by_group[2], -1, -1) for each in (key, value))
    mask = None
    for begin in range(0, queries, PIECE):
        end = min(begin + PIECE, queries)
        low = max(0, positions - queries + begin - window + 1) if window else 0
        high = positions - queries + end
        alone = high - low == end - begin and (window == 0 or window >= high)
        if mask is None and not alone:
            mask = _mask(min(PIECE, queries), positions, window)
        piece = None if alone or mask is None else mask[begin - end :, low - high :]
        out[:, :, begin:end] = scaled_dot_product_attention(
            query[:, :, begin:end], key[:, :, low:high], value[:, :, low:high], piece, is_causal=alone, scale=scale
        )


def _mask(queries: int, positions: int, window: int) -> Tensor:
    """What the last queries may not see of the positions up to theirs; its lower right part serves fewer of both."""
    hidden = torch.full((queries, positions), float("-inf"))
    mask = hidden.triu(positions - queries + 1)
    return mask + hidden.tril_(positions - queries - window) if window else mask


def _in_rows(tensor: Tensor) -> Tensor:
    """The same tokens, each token's heads beside each other; a slice of a wider projection stays where it is."""
    return tensor if tensor.stride()[1:] == (tensor.shape[2], 1) else tensor.contiguous()
