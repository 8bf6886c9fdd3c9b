"""A step of paged attention with random contents, and what it reads and multiplies: what kernels are compared on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from serving.attention import Attention

BLOCK = 16


@dataclass(frozen=True)
class AttentionCase:
    """Sequences that all have `queries` new tokens of `context`."""

    name: str
    sequences: int
    queries: int
    context: int
    kv_heads: int
    group: int
    head_dim: int

    @property
    def flops(self) -> float:
        """Two products; of a prefill, half of them are masked away."""
        pairs = self.queries * (self.context - self.queries / 2) if self.queries > 1 else self.context
        return 4.0 * self.sequences * pairs * self.kv_heads * self.group * self.head_dim

    def bytes_read(self, item: int) -> float:
        return 2.0 * self.sequences * self.context * self.kv_heads * self.head_dim * item

    def make(self, where: torch.device, dtype: torch.dtype) -> AttentionStep:
        random = torch.Generator().manual_seed(1)
        blocks_each = -(-self.context // BLOCK)
        blocks = self.sequences * blocks_each
        heads = self.kv_heads * self.group
        query = torch.randn(self.sequences * self.queries, heads, self.head_dim, generator=random)
        caches = torch.randn(2, blocks, self.kv_heads, BLOCK, self.head_dim, generator=random)
        tables = torch.randperm(blocks, generator=random).view(self.sequences, blocks_each)
        starts = torch.arange(self.sequences + 1) * self.queries
        lens = torch.full((self.sequences,), self.context)
        return AttentionStep(
            query.to(where, dtype),
            caches[0].to(where, dtype).contiguous(),
            caches[1].to(where, dtype).contiguous(),
            tables.to(where, torch.int32),
            starts.to(where, torch.int32),
            lens.to(where, torch.int32),
        )


@dataclass(frozen=True)
class AttentionStep:
    query: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    starts: Tensor
    lens: Tensor

    def run(self, attention: Attention) -> Tensor:
        arrays = (self.query, self.keys, self.values, self.tables, self.starts, self.lens)
        return attention.paged_attention(*arrays, scale=self.query.shape[2] ** -0.5)


def twin() -> Attention:
    from serving.attention import torch_paged

    return Attention(torch_paged.paged_attention, torch_paged.store_kv)


SMALL = (
    AttentionCase("decode", 2, 1, 40, 2, 2, 16),
    AttentionCase("prefill", 1, 20, 36, 2, 2, 16),
)
"""For the interpreter, which is some thousand times slower than a device."""
LARGE = (
    AttentionCase("decode", 64, 1, 2048, 8, 4, 128),
    AttentionCase("prefill", 2, 1024, 2048, 8, 4, 128),
)
CORE = (
    AttentionCase("decode", 16, 1, 4096, 4, 2, 64),
    AttentionCase("prefill", 1, 256, 512, 4, 2, 64),
)
"""For one core of a processor."""
