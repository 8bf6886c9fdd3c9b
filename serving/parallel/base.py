"""What the shards of one group exchange tensors through: collectives within a stage, a channel to the next stage.

Knows neither how the tensors travel nor what is in them. A call that waits ends in one of three ways: it is done,
it raises PeerLost, or it raises an error about its arguments; it never hangs on a peer that is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class PeerLost(RuntimeError):  # noqa: N818  (it says what happened)
    """A peer is gone, or was given up by abort(); what connected the group is of no more use."""


class Received(NamedTuple):
    """What came in an all-to-all: the rows of all ranks, in the order of ranks, and how many each one sent."""

    rows: Tensor
    counts: list[int]


class Collectives(Protocol):
    """What the tp devices of one stage do together: all call the same operations, in the same order, each with a
    tensor of the same shape and dtype (in all_to_all each with rows of its own number). One thread calls them; `abort`
    may come from another."""

    rank: int
    size: int

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace the tensor by the sum over all ranks; every rank gets the same bits."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, side by side along the last dimension in the order of ranks."""

    def gather(self, tensor: Tensor) -> Tensor | None:
        """The same for rank 0 alone; the other ranks get None."""

    def all_to_all(self, rows: Tensor, counts: Sequence[int]) -> Received:
        """Send the first counts[0] of the rows [n, ...] to rank 0, the next counts[1] to rank 1 and so on."""

    def abort(self, reason: str) -> None:
        """Let every call that waits, and every later one, raise PeerLost(reason)."""

    def close(self) -> None:
        """Let go of what the group shares; peers that still wait for this rank raise PeerLost."""


class Channel(Protocol):
    """One end of the way between two devices of adjacent stages: first in, first out, in both directions.

    One thread sends and receives; `abort` may come from another.
    """

    def send(self, tensor: Tensor) -> None:
        """Hand over a copy of the tensor; waits while the peer is too many tensors behind."""

    def receive(self) -> Tensor:
        """Wait for the next tensor. It may lie in shared memory: it is valid until the next receive on this channel."""

    def abort(self, reason: str) -> None:
        """Let the call that waits, and every later one, raise PeerLost(reason)."""

    def close(self) -> None:
        """Hang up; the peer can still receive what was sent, then raises PeerLost."""


class Alone:
    """Collectives of one device: nothing to exchange."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self._reason: str | None = None

    def all_reduce(self, tensor: Tensor) -> None:
        self._check()

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._check()
        return tensor

    def gather(self, tensor: Tensor) -> Tensor | None:
        self._check()
        return tensor

    def all_to_all(self, rows: Tensor, counts: Sequence[int]) -> Received:
        self._check()
        return Received(rows, list(counts))

    def abort(self, reason: str) -> None:
        self._reason = reason

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self._reason is not None:
            raise PeerLost(self._reason)
