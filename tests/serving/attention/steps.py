"""Steps of an engine for the tests: sequences of any lengths, their blocks anywhere in the cache."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass
class Step:
    """The arguments of paged_attention, and each sequence's own keys and values [context, kv_heads, head_dim]."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    query_starts: Tensor
    context_lens: Tensor
    window: int
    keys: list[Tensor]
    values: list[Tensor]

    @property
    def scale(self):
        return self.query.shape[2] ** -0.5

    def run(self, attention):
        arguments = (self.query, self.key_cache, self.value_cache, self.block_tables)
        lengths = (self.query_starts, self.context_lens)
        return attention.paged_attention(*arguments, *lengths, scale=self.scale, window=self.window)


@dataclass(frozen=True)
class Shape:
    kv_heads: int
    group: int
    head_dim: int
    block_size: int


def make_step(shape, chunks, window=0, dtype=torch.float32, seed=0):
    """`chunks`: for each sequence its queries and what was cached before them. No cell that no token owns is a number,
    and tables end in nonsense."""
    random = torch.Generator().manual_seed(seed)
    contexts = [queries + cached for queries, cached in chunks]
    needed = [-(-context // shape.block_size) for context in contexts]
    blocks = torch.randperm(sum(needed) + 3, generator=random)
    cells = (len(blocks), shape.kv_heads, shape.block_size, shape.head_dim)
    key_cache, value_cache = torch.full(cells, float("nan"), dtype=dtype), torch.full(cells, float("nan"), dtype=dtype)
    tables = torch.full((len(chunks), max(needed) + 2), -1, dtype=torch.int32)
    tables[:, -1] = 2**30
    keys, values = [], []
    for sequence, (context, count) in enumerate(zip(contexts, needed, strict=True)):
        own, blocks = blocks[:count], blocks[count:]
        tables[sequence, :count] = own.int()
        at = torch.arange(context)
        for cache, held in ((key_cache, keys), (value_cache, values)):
            tokens = torch.randn(context, shape.kv_heads, shape.head_dim, generator=random).to(dtype)
            cache[own[at // shape.block_size], :, at % shape.block_size] = tokens
            held.append(tokens)
    starts = [0, *accumulate(queries for queries, _ in chunks)]
    query = torch.randn(starts[-1], shape.kv_heads * shape.group, shape.head_dim, generator=random).to(dtype)
    index = {"dtype": torch.int32}
    lengths = torch.tensor(starts, **index), torch.tensor(contexts, **index)
    return Step(query, key_cache, value_cache, tables, *lengths, window, keys, values)


def steps(shapes, longest=40, sequences=4, dtype=torch.float32):
    """Steps that mix decoding sequences with chunks, some with something cached before them."""
    chunk = st.tuples(st.one_of(st.just(1), st.integers(1, longest)), st.one_of(st.just(0), st.integers(0, longest)))
    chunks = st.lists(chunk, min_size=1, max_size=sequences)
    window = st.one_of(st.just(0), st.integers(1, longest + 5))
    return st.builds(make_step, shapes, chunks, window, st.just(dtype), st.integers(0, 2**20))


def shapes(head_dims, block_sizes, groups=(1, 2, 3, 4, 7), kv_heads=(1, 2, 3)):
    return st.builds(Shape, *(st.sampled_from(each) for each in (kv_heads, groups, head_dims, block_sizes)))


def dense(step):
    """Every query of every head on its own, in float64, over the positions it may see."""
    out = torch.empty(step.query.shape, dtype=torch.float64)
    group = step.query.shape[1] // step.key_cache.shape[1]
    for sequence, (key, value) in enumerate(zip(step.keys, step.values, strict=True)):
        begin, end = step.query_starts[sequence].item(), step.query_starts[sequence + 1].item()
        for row in range(begin, end):
            position = len(key) - (end - row)
            seen = [p for p in range(position + 1) if step.window == 0 or p > position - step.window]
            for head in range(step.query.shape[1]):
                scores = key[seen, head // group].double() @ step.query[row, head].double() * step.scale
                out[row, head] = scores.softmax(0) @ value[seen, head // group].double()
    return out


def replay(attention, shape, tokens, chunk_sizes, window=0, dtype=torch.float32):
    """One sequence through a cache of its own, chunk after chunk: what came out for each of its tokens."""
    random = torch.Generator().manual_seed(1)
    heads = shape.kv_heads * shape.group
    # As a model hands them over: slices of one projection.
    sizes = [heads, shape.kv_heads, shape.kv_heads]
    query, key, value = torch.randn(tokens, sum(sizes), shape.head_dim, generator=random).to(dtype).split(sizes, 1)
    count = -(-tokens // shape.block_size)
    table = torch.randperm(count, generator=random)
    cells = (count, shape.kv_heads, shape.block_size, shape.head_dim)
    key_cache, value_cache = torch.zeros(cells, dtype=dtype), torch.zeros(cells, dtype=dtype)
    out, done = [], 0
    for size in chunk_sizes:
        at = torch.arange(done, done + size)
        slots = table[at // shape.block_size] * shape.block_size + at % shape.block_size
        rows = slice(done, done + size)
        attention.store_kv(key[rows], value[rows], key_cache, value_cache, slots)
        lengths = torch.tensor([0, size], dtype=torch.int32), torch.tensor([done + size], dtype=torch.int32)
        arguments = (query[rows], key_cache, value_cache, table[None].int(), *lengths)
        out.append(attention.paged_attention(*arguments, scale=shape.head_dim**-0.5, window=window))
        done += size
    assert done == tokens
    return torch.cat(out)


def store_anywhere(attention, shape, tokens, dtype=torch.float32):
    """Store tokens at random slots: both caches, and what they must be."""
    random = torch.Generator().manual_seed(tokens)
    cells = (tokens // shape.block_size + 2, shape.kv_heads, shape.block_size, shape.head_dim)
    caches = [torch.randn(cells, generator=random).to(dtype) for _ in range(2)]
    wanted = [cache.clone() for cache in caches]
    projected = torch.randn(tokens, 3 * shape.kv_heads, shape.head_dim, generator=random).to(dtype)
    _, key, value = projected.split(shape.kv_heads, 1)
    slots = torch.randperm(cells[0] * shape.block_size, generator=random)[:tokens]
    for token, slot in enumerate(slots.tolist()):
        for cache, held in zip(wanted, (key, value), strict=True):
            cache[slot // shape.block_size, :, slot % shape.block_size] = held[token]
    attention.store_kv(key, value.contiguous(), *caches, slots)
    return caches, wanted
