"""Collectives between processes of one machine, in memory they share: each puts its tensor into a slot of its own,
takes a step, waits for the others to take theirs and reads what they brought.

Every rank has two slots in turns, so that one wait serves an operation; what is larger than a slot goes in pieces.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.parallel import summing
from serving.parallel.base import PeerLost, Received
from serving.parallel.header import DTYPES
from serving.parallel.region import LINE, Region

SLOT_BYTES = 256 << 10
"""Two slots of every rank should stay in the cache that the cores share."""
SPINS = 8000
"""Looks for the others before sleeping, some 200 us: longer than ranks in step are apart."""
SPINS_CROWDED = 400
"""The same where there are more ranks than cores, and the others may wait for this one's."""
NAP_NS = 2_000_000
"""How often who sleeps looks for abort() and for peers that are gone."""
_PAGE = 4096
_REDUCE, _GATHER, _COUNTS, _SCATTER = 1, 2, 3, 4


def collectives_bytes(size: int, slot_bytes: int = SLOT_BYTES) -> int:
    """The memory that a stage of `size` devices shares."""
    return _board_bytes(size) + 2 * size * slot_bytes


class SharedCollectives:
    """`peers`: a connected socket to every other rank, on which nothing is ever sent; its end is the peer's end."""

    def __init__(
        self, region: Region, rank: int, size: int, peers: Mapping[int, socket.socket], slot_bytes: int = SLOT_BYTES
    ) -> None:
        assert size > 1
        assert slot_bytes % LINE == 0
        self.rank, self.size = rank, size
        self._region = region
        self._peers = dict(peers)
        self._reason: str | None = None
        self._slot_bytes = slot_bytes
        self._board_bytes = _board_bytes(size)
        self._polls = np.zeros(size, [("descriptor", "i4"), ("events", "i2"), ("happened", "i2")])
        self._polls["descriptor"] = [peers[peer].fileno() if peer in peers else -1 for peer in range(size)]
        self._polls["events"] = select.POLLIN
        self._polls_address: int = self._polls.ctypes.data
        self._spins = SPINS if size <= (os.cpu_count() or 1) else SPINS_CROWDED
        region.words[summing.NAP // 8 + 1] = NAP_NS

    def all_reduce(self, tensor: Tensor) -> None:
        self._check(tensor)
        if not tensor.is_contiguous():
            whole = tensor.contiguous()
            self.all_reduce(whole)
            tensor.copy_(whole)
        elif tensor.dtype == torch.float32:
            self._add_floats(tensor)
        else:
            self._add(tensor.view(-1))

    def all_gather(self, tensor: Tensor) -> Tensor:
        gathered = self._side_by_side(tensor, wanted=True)
        assert gathered is not None
        return gathered

    def gather(self, tensor: Tensor) -> Tensor | None:
        return self._side_by_side(tensor, wanted=self.rank == 0)

    def all_to_all(self, rows: Tensor, counts: Sequence[int]) -> Received:
        """All learn all counts first; then a slot has a window for each other rank, filled as often as needed."""
        self._check(rows)
        assert len(counts) == self.size
        assert sum(counts) == len(rows)
        each = self._all_counts(counts)
        mine = [int(count) for count in each[:, self.rank]]
        row_bytes = math.prod(rows.shape[1:]) * rows.itemsize
        received = rows.new_empty((sum(mine), *rows.shape[1:]))
        source, target = _bytes(rows), _bytes(received)
        outgoing, incoming = _spans(counts, row_bytes), _spans(mine, row_bytes)
        target[incoming[self.rank]] = source[outgoing[self.rank]]
        window = self._slot_bytes // self.size
        largest = int(np.where(np.eye(self.size, dtype=bool), 0, each).max()) * row_bytes
        mark = _SCATTER + 16 * DTYPES.index(rows.dtype) + 256 * row_bytes
        for begin in range(0, largest, window):
            slots = self._open_slots()
            for peer, (first, last) in enumerate(_pieces(outgoing, begin, window)):
                if peer != self.rank and first < last:
                    slots[self.rank][peer * window : peer * window + last - first] = source[first:last]
            self._take_step(mark)
            for peer, (first, last) in enumerate(_pieces(incoming, begin, window)):
                if peer != self.rank and first < last:
                    target[first:last] = slots[peer][self.rank * window : self.rank * window + last - first]
        return Received(received, mine)

    def abort(self, reason: str) -> None:
        """The other ranks find that this one gave up, too."""
        self._reason = self._reason or reason
        self._region.words[0] = 1 + self.rank

    def close(self) -> None:
        """The memory itself goes with the last tensor that lies in it."""
        self._reason = self._reason or "the collectives are closed"
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.close()

    def _add_floats(self, tensor: Tensor) -> None:
        board = self._region.address
        slots = board + self._board_bytes
        mark, spins, polls = _mark(_REDUCE, tensor), self._spins, self._polls_address
        data, count = tensor.data_ptr(), tensor.numel()
        capacity, rank, size = self._slot_bytes, self.rank, self.size
        self._judge(summing.all_reduce(board, slots, capacity, rank, size, mark, spins, polls, data, count))

    def _add(self, flat: Tensor) -> None:
        """The sum of any other dtype: every rank sums the whole, in the order of ranks."""
        mark = _mark(_REDUCE, flat)
        most = self._slot_bytes // flat.itemsize
        for begin in range(0, len(flat), most):
            piece = flat if len(flat) <= most else flat[begin : begin + most]
            slots = self._exchange(piece, mark)
            torch.add(slots[0], slots[1], out=piece)
            for more in slots[2:]:
                piece.add_(more)

    def _side_by_side(self, tensor: Tensor, wanted: bool) -> Tensor | None:
        self._check(tensor)
        columns, rows = tensor.shape[-1], math.prod(tensor.shape[:-1])
        mark = _mark(_GATHER, tensor)
        source = tensor.reshape(rows, columns)
        target = tensor.new_empty((rows, self.size, columns)) if wanted else None
        for across, along in _blocks(rows, columns, self._slot_bytes // tensor.itemsize):
            piece = source[across, along]
            slots = self._exchange(piece, mark)
            if target is not None:
                for rank, slot in enumerate(slots):
                    target[across, rank, along] = slot.view(piece.shape)
        return None if target is None else target.view(*tensor.shape[:-1], self.size * columns)

    def _all_counts(self, counts: Sequence[int]) -> NDArray[np.int64]:
        """[from, to] of all ranks."""
        slots = self._exchange(torch.tensor(counts), _COUNTS)
        return torch.stack(slots).numpy()

    def _open_slots(self) -> list[Tensor]:
        """The slots of all ranks for the next step, as bytes."""
        whole = torch.empty(self._slot_bytes, dtype=torch.uint8, device="meta")
        return [self._slot(rank, self._next_step(), whole) for rank in range(self.size)]

    def _exchange(self, piece: Tensor, mark: int) -> list[Tensor]:
        """Bring a piece of at most a slot; gives the pieces of all ranks, flat, valid until the next exchange."""
        step = self._next_step()
        slots = [self._slot(rank, step, piece) for rank in range(self.size)]
        slots[self.rank].view(piece.shape).copy_(piece)
        self._take_step(mark)
        return slots

    def _next_step(self) -> int:
        return 1 + int(self._region.words[(1 + self.rank) * LINE // 8])

    def _take_step(self, mark: int) -> None:
        board, spins, polls = self._region.address, self._spins, self._polls_address
        self._judge(summing.take_step(board, self.rank, self.size, mark, spins, polls))

    def _slot(self, rank: int, step: int, like: Tensor) -> Tensor:
        offset = self._board_bytes + (2 * rank + step % 2) * self._slot_bytes
        return torch.frombuffer(self._region.memory, dtype=like.dtype, count=like.numel(), offset=offset)

    def _check(self, tensor: Tensor) -> None:
        if self._reason is not None:
            raise PeerLost(self._reason)
        if tensor.device.type != "cpu" or tensor.dtype not in DTYPES or not tensor.dim():
            raise ValueError(f"shared memory takes tensors of one dimension or more on the CPU, not {tensor.device}")

    def _judge(self, status: int) -> None:
        if status == summing.DONE:
            return
        if status == summing.MISMATCHED:
            self.abort("the ranks of the stage call different operations, or bring tensors of different size")
            raise ValueError(self._reason)
        if status == summing.ABORTED:
            reason = f"rank {int(self._region.words[0]) - 1} of the stage gave up"
        else:
            reason = f"rank {np.flatnonzero(self._polls['happened'])[0]} of the stage is gone"
        self.abort(reason)
        raise PeerLost(self._reason)


def _board_bytes(size: int) -> int:
    return math.ceil((1 + size) * LINE / _PAGE) * _PAGE


def _mark(operation: int, tensor: Tensor) -> int:
    """What the ranks must agree on, in one word: operation, dtype, elements."""
    return operation + 16 * DTYPES.index(tensor.dtype) + 256 * tensor.numel()


def _blocks(rows: int, columns: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Cut a matrix into blocks of at most `most` elements: whole rows where a row fits."""
    high = max(most // max(columns, 1), 1)
    for top in range(0, rows, high):
        for left in range(0, columns, most):
            yield slice(top, min(top + high, rows)), slice(left, min(left + most, columns))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _spans(counts: Sequence[int], row_bytes: int) -> list[slice]:
    """Which bytes each count of rows takes."""
    ends = [end * row_bytes for end in accumulate(counts, initial=0)]
    return [slice(begin, end) for begin, end in pairwise(ends)]


def _pieces(spans: list[slice], begin: int, length: int) -> Iterator[tuple[int, int]]:
    """Of each span what lies in so many bytes from its `begin`th."""
    for span in spans:
        yield min(span.start + begin, span.stop), min(span.start + begin + length, span.stop)
