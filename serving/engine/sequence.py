"""One sequence being generated: its tokens, how many of them are in the cache, and where. Knows nothing of text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from serving.sampling import SamplingParams

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(eq=False)
class Sequence:
    """Answer `index` of request `request`. The tokens before `computed` are in the cache, in `blocks`."""

    request: str
    index: int
    tokens: list[int]
    """Prompt, then output."""
    params: SamplingParams
    seed: int
    stop_tokens: frozenset[int]
    max_tokens: int
    """Of output; what the request asks for and the model's positions leave."""
    output_ids: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    """Names of its full blocks, for whoever has the same prefix."""
    table: NDArray[np.int32] = field(default_factory=lambda: np.full(8, -1, np.int32))
    """`blocks` as an array, with room to grow."""
    cached_prompt: int = 0
    """Prompt tokens that were found in the cache when it first ran."""
    first_at: float = 0.0
    """When its first token came, for who looks at the time."""
    is_cancelled: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def prompt_ids(self) -> list[int]:
        return self.tokens[: len(self.tokens) - len(self.output_ids)]

    @property
    def pending(self) -> int:
        """Tokens to be computed before the next one can be sampled: 1 while it decodes."""
        return len(self.tokens) - self.computed

    @property
    def is_decoding(self) -> bool:
        return len(self.tokens) - self.computed == 1 and bool(self.output_ids)

    def extend_blocks(self, blocks: list[int]) -> None:
        before, after = len(self.blocks), len(self.blocks) + len(blocks)
        if after > len(self.table):
            self.table = np.concatenate([self.table, np.full(max(after, len(self.table)), -1, np.int32)])
        self.table[before:after] = blocks
        self.blocks += blocks

    def drop_cache(self) -> None:
        """Forget what was computed; its blocks have been given back."""
        self.computed = 0
        self.blocks = []

    def accept(self, token: int) -> FinishReason | None:
        """Append a sampled token; says whether and why the sequence ends with it."""
        self.tokens.append(token)
        self.output_ids.append(token)
        if token in self.stop_tokens:
            return "stop"
        return "length" if len(self.output_ids) >= self.max_tokens else None
