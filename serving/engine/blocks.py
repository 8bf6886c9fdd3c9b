"""The blocks of one model's key-value cache: who holds which, and which hold a prefix that somebody may ask for again.

Only numbers here; the memory itself belongs to the shards, and all of them use the same numbers.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence as Tokens

import numpy as np

BLOCK_TOKENS = 16


class BlockPool:
    """A block is free, held by one or more sequences, or kept: free, but still findable by its prefix until it is
    needed for something else (least recently used first).
    """

    def __init__(self, blocks: int, block_tokens: int = BLOCK_TOKENS) -> None:
        assert blocks > 0
        self.blocks = blocks
        self.block_tokens = block_tokens
        self._free = list(range(blocks - 1, -1, -1))
        self._holders = [0] * blocks
        self._key: list[bytes | None] = [None] * blocks
        self._by_key: dict[bytes, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        return len(self._free) + len(self._kept)

    @property
    def used(self) -> int:
        return self.blocks - self.available

    def needed(self, tokens: int, held: int) -> int:
        """Blocks that a sequence with `held` blocks lacks to have room for `tokens` tokens."""
        return max(-(-tokens // self.block_tokens) - held, 0)

    def can_allocate(self, count: int) -> bool:
        return count <= self.available

    def allocate(self, count: int) -> list[int]:
        assert self.can_allocate(count)
        return [self._take() for _ in range(count)]

    def release(self, blocks: list[int]) -> None:
        """Give up one hold on each; the last of a prefix is the first to be forgotten."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            assert self._holders[block] >= 0, f"block {block} released twice"
            if self._holders[block] == 0:
                if self._key[block] is None:
                    self._free.append(block)
                else:
                    self._kept[block] = None

    def find(self, keys: list[bytes]) -> list[int]:
        """The blocks of the longest known beginning of `keys`; nothing is held yet."""
        found: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def can_hold(self, found: list[int], more: int) -> bool:
        """Whether `more` blocks remain once the found ones are held."""
        return self.available - sum(self._holders[block] == 0 for block in found) >= more

    def hold(self, blocks: list[int]) -> None:
        for block in blocks:
            if self._holders[block] == 0:
                del self._kept[block]
            self._holders[block] += 1

    def publish(self, block: int, key: bytes) -> None:
        """Make a full block findable; a second block with the same content stays private."""
        if key not in self._by_key and self._key[block] is None:
            self._by_key[key] = block
            self._key[block] = key

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            key = self._key[block]
            assert key is not None
            del self._by_key[key]
            self._key[block] = None
        self._holders[block] = 1
        return block


def block_keys(tokens: Tokens[int], known: list[bytes], blocks: int, block_tokens: int = BLOCK_TOKENS) -> list[bytes]:
    """`known` extended to the names of the first `blocks` full blocks: a hash of all tokens up to each one's end.

    Cryptographic, since two prompts with one name would share what they must not.
    """
    keys = list(known)
    for block in range(len(keys), blocks):
        part = np.asarray(tokens[block * block_tokens : (block + 1) * block_tokens], np.int32).tobytes()
        before = keys[-1] if keys else b""
        keys.append(hashlib.blake2b(before + part, digest_size=16).digest())
    return keys
