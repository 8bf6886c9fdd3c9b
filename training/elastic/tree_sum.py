"""A sum whose bits do not depend on who adds what: the parts of a step are added in a tree that is always the same.

Blocks of 1, 2, 4, ... neighbouring parts are added in pairs, each when both are there; what is left at the end is
added from the right. Whoever has some neighbouring parts gets as far as they go, and hands on the blocks.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Block(NamedTuple):
    """`size` parts from `start` on."""

    start: int
    size: int


class TreeSum:
    """Blocks come in order, each where the one before ended."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self.sums: list[Tensor] = []
        """Of the blocks so far, which are the `blocks_of` the parts."""

    def add(self, block: Block, value: Tensor) -> None:
        """Takes the value over."""
        assert not self._blocks or sum(self._blocks[-1]) == block.start
        self._blocks.append(block)
        self.sums.append(value)
        while _join_last(self._blocks):
            self._add_last()

    def total(self) -> Tensor:
        while len(self.sums) > 1:
            self._add_last()
        return self.sums[0]

    def _add_last(self) -> None:
        right = self.sums.pop()
        self.sums[-1].add_(right)


def blocks_of(parts: range) -> list[Block]:
    """What a TreeSum of neighbouring parts comes to."""
    found: list[Block] = []
    for part in parts:
        found.append(Block(part, 1))
        while _join_last(found):
            pass
    return found


def _join_last(blocks: list[Block]) -> bool:
    """Make one block of the last two if they are a pair."""
    if len(blocks) < 2 or blocks[-2].size != blocks[-1].size or blocks[-2].start % (2 * blocks[-1].size):
        return False
    last = blocks.pop()
    blocks[-1] = Block(blocks[-1].start, 2 * last.size)
    return True
