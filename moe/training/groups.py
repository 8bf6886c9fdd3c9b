"""The ranks that exchange with each other in training, over torch.distributed: gloo on CPU, NCCL on GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor

from moe.training.packing import Packing

_LONG = timedelta(days=365)  # whoever follows may wait for long until there is something to do
dist: Any = torch.distributed


class Group(Protocol):
    """All ranks of it call the same operations in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace it by the sum over all ranks."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[ranks, ...]"""

    def all_to_all(self, arriving: Tensor, rows: Tensor, arrives: Sequence[int], leaves: Sequence[int]) -> None:
        """The first leaves[0] of the rows go to rank 0 and so on; arrives[0] come from it, into `arriving`."""


class TorchGroup:
    def __init__(self, ranks: list[int], group: Any) -> None:
        self.rank, self.size, self._group = ranks.index(dist.get_rank()), len(ranks), group

    def all_reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self._group)

    def all_gather(self, tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor, group=self._group)
        return torch.stack(parts)

    def all_to_all(self, arriving: Tensor, rows: Tensor, arrives: Sequence[int], leaves: Sequence[int]) -> None:
        dist.all_to_all_single(arriving, rows, list(arrives), list(leaves), group=self._group)


class TorchOrders:
    """Rank 0's word to the others, over a group of its own."""

    def __init__(self, group: Any) -> None:
        self.leads = dist.get_rank() == 0
        self._group = group

    def tell(self, number: int) -> None:
        dist.broadcast(torch.tensor(number), 0, group=self._group)

    def hear(self) -> int:
        number = torch.tensor(0)
        dist.broadcast(number, 0, group=self._group)
        return int(number)


@dataclass(frozen=True)
class Groups:
    """Those of one rank."""

    world: Group
    row: Group
    """Among which tokens travel."""
    column: Group
    """Who holds the same experts."""
    orders: TorchOrders


def connect(packing: Packing) -> Groups:
    """All ranks of torch.distributed's world, which is up, call it at the same time."""
    assert dist.get_world_size() == packing.devices, f"{dist.get_world_size()} ranks for {packing.devices} devices"
    everyone = list(range(packing.devices))
    return Groups(
        TorchGroup(everyone, dist.new_group(everyone)),
        _own(packing.rows()),
        _own(packing.columns()),
        TorchOrders(dist.new_group(everyone, timeout=_LONG, backend="gloo")),
    )


def _own(parts: list[list[int]]) -> TorchGroup:
    """Every rank makes all of them, in the same order."""
    made = [(ranks, dist.new_group(ranks)) for ranks in parts]
    return next(TorchGroup(ranks, group) for ranks, group in made if dist.get_rank() in ranks)
