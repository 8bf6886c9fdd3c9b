"""How workers exchange what they have: gradients, summed in the same order on any number of them, and their state.

Over the collectives that a model's shards use (serving.parallel): shared memory on one machine. A peer that is gone
raises PeerLost on all others.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from serving.parallel import Collectives, Layout, connect
from training.elastic.samples import parts_of
from training.elastic.tree_sum import TreeSum, blocks_of


def sum_parts(group: Collectives, own: Sequence[Tensor], parts: int, size: int) -> Tensor:
    """The sum over all parts of a step, [size]; `own` are the blocks of this worker's parts, each [size].

    1. Each worker sends each other its slice of every block. 2. Each adds up its slice over all blocks, in the tree's
    order. 3. All gather the slices.
    """
    blocks = [blocks_of(parts_of(rank, group.size, parts)) for rank in range(group.size)]
    share = -(-size // group.size)
    cut = [F.pad(block, (0, share * group.size - size)).view(group.size, share) for block in own]
    rows = torch.stack(cut, dim=1).flatten(0, 1) if cut else torch.empty(0, share)
    received = group.all_to_all(rows, [len(own)] * group.size)
    total = TreeSum()
    for block, row in zip((block for some in blocks for block in some), received.rows, strict=True):
        total.add(block, row)
    return group.all_gather(total.total().contiguous())[:size]


def any_of(group: Collectives, wanted: bool) -> bool:
    """Whether any worker wants it: all get the same answer."""
    return bool(group.all_gather(torch.tensor([int(wanted)])).any())


def warm_up() -> None:
    """Load what is compiled for an exchange, before others wait for it: two ranks in this process make one."""

    def exchange(rank: int) -> None:
        group = connect(Layout(2, 1, rank), folder).tensor
        sum_parts(group, [torch.zeros(1)], 2, 1)
        group.close()

    with tempfile.TemporaryDirectory() as folder:
        other = threading.Thread(target=exchange, args=(1,))
        other.start()
        exchange(0)
        other.join()


def hand_state(group: Collectives, state: bytes, behind: Sequence[int]) -> None:
    """Give the state to the workers that are behind; the others `take_state` meanwhile."""
    row = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    counts = [len(row) if rank in behind else 0 for rank in range(group.size)]
    group.all_to_all(row.repeat(len(behind)), counts)


def take_state(group: Collectives) -> bytes:
    """What was handed over: nothing where this worker is not behind."""
    received = group.all_to_all(torch.empty(0, dtype=torch.uint8), [0] * group.size)
    return received.rows.numpy().tobytes()
