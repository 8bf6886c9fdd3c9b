"""Which group has which prompt beginnings in its cache, as far as the router knows: it remembers what it sent there.

Bounded, and a guess: a group forgets blocks when it needs room. A wrong guess costs a prefill, never a wrong answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""As the engine's cache counts them: only whole blocks are shared."""

MOST_BLOCKS = 256
"""Of one prompt that are named; what is behind them is not looked for."""


def block_names(prompt: Sequence[int]) -> tuple[int, ...]:
    """A name for the prompt up to the end of each of its full blocks, in this process."""
    names: list[int] = []
    name = 0
    # The last token is always computed anew, as its logits are wanted.
    for block in range(min((len(prompt) - 1) // BLOCK_TOKENS, MOST_BLOCKS)):
        name = hash((name, tuple(prompt[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS])))
        names.append(name)
    return tuple(names)


class PrefixMemory:
    """The blocks of one model that were sent to one group, the least recently sent forgotten first."""

    __slots__ = ("_blocks", "_names")

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._names: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def remember(self, names: Sequence[int]) -> None:
        for name in reversed(names):  # the beginning is the last to be forgotten
            self._names[name] = None
            self._names.move_to_end(name)
        while len(self._names) > self._blocks:
            self._names.popitem(last=False)

    def known_tokens(self, names: Sequence[int]) -> int:
        """How many tokens of a prompt with these blocks it holds."""
        # A block is never forgotten before one behind it, so those it holds are the first ones.
        return bisect_left(names, True, key=lambda name: name not in self._names) * BLOCK_TOKENS
