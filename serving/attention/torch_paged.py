"""Paged attention in plain torch: the twin that says what the fast ones must compute, on any device and in any dtype.

Clear rather than fast: one sequence after another, scores in fp32, nothing fused.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
    """Causal attention of each sequence's queries, its last positions, over what the cache holds of it.

    query [tokens, heads, head_dim], caches [blocks, kv_heads, block_size, head_dim], block_tables [sequences,
    max_blocks], query_starts [sequences + 1], context_lens [sequences], this step's tokens among them.
    A window above 0 shows a query at position p only p-window+1..p.
    """
    out = torch.empty_like(query)
    group = query.shape[1] // key_cache.shape[1]
    starts, lens = query_starts.tolist(), context_lens.tolist()
    for sequence, context in enumerate(lens):
        rows = slice(starts[sequence], starts[sequence + 1])
        # What slid out of every query's window may be gone from the cache.
        first = max(0, context - (rows.stop - rows.start) - window + 1) if window else 0
        key = _gather(key_cache, block_tables[sequence], first, context, group)
        value = _gather(value_cache, block_tables[sequence], first, context, group)
        scores = query[rows].float().transpose(0, 1) @ key.transpose(1, 2) * scale
        mask = _visible(rows.stop - rows.start, first, context, window, query.device)
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        out[rows] = (weights @ value).transpose(0, 1).to(query.dtype)
    return out


def store_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Put each token's key and value [tokens, kv_heads, head_dim] at its slot, block * block_size + offset."""
    block_size = key_cache.shape[2]
    block, offset = slots // block_size, slots % block_size
    key_cache[block, :, offset] = key
    value_cache[block, :, offset] = value


def _gather(cache: Tensor, table: Tensor, first: int, context: int, group: int) -> Tensor:
    """Positions first..context of one sequence, once for each query head: [heads, context - first, head_dim]."""
    position = torch.arange(first, context, device=cache.device)
    block_size = cache.shape[2]
    held = cache[table[position // block_size].long(), :, position % block_size]  # [positions, kv_heads, head_dim]
    return held.float().transpose(0, 1).repeat_interleave(group, 0)


def _visible(queries: int, first: int, context: int, window: int, device: torch.device) -> Tensor:
    """Which position each query sees: [queries, context - first]."""
    behind = torch.arange(context - queries, context, device=device)[:, None] - torch.arange(
        first, context, device=device
    )
    return (behind >= 0) & (behind < window) if window else behind >= 0
