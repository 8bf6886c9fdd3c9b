"""Experts spread over devices that each have tokens of their own: tokens go to the devices of their experts and back.

A token goes to a device once, however many of its experts are there, with its places and weights; what comes back is
the weighted sum of their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from moe.experts import Compute
from moe.parallel.places import Places


class Exchange(Protocol):
    """What the devices exchange rows through; a tensor-parallel group's collectives are one."""

    rank: int
    size: int

    def all_gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, side by side along the last dimension in the order of ranks."""

    def all_to_all(self, rows: Tensor, counts: Sequence[int]) -> Any:
        """Send the first counts[0] of the rows to rank 0, and so on; gives `rows` and `counts` that came."""


class ExchangedExperts:
    """The experts of all devices, as a Compute for this one's tokens. All devices call it at the same time, also with
    no tokens at all, and `choices` are experts, not slots."""

    def __init__(self, experts: Compute, places: Places, exchange: Exchange) -> None:
        self._experts, self._places, self._exchange = experts, places, exchange
        self._device, self._local = torch.from_numpy(places.device), torch.from_numpy(places.local)

    def __call__(self, x: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
        exchange, places = self._exchange, self._places
        own = torch.bincount(choices.flatten(), minlength=places.experts)
        counts = exchange.all_gather(own).view(exchange.size, -1)
        slots = places.assign(choices, counts, exchange.rank).cpu()
        device, local = self._device[slots].to(x.device), self._local[slots].to(x.device)
        targets = torch.arange(exchange.size, device=x.device)
        is_needed = (device[None] == targets[:, None, None]).any(dim=-1)
        target, token = is_needed.nonzero(as_tuple=True)
        sizes = is_needed.sum(dim=1).tolist()
        here = local[token].where(device[token] == target[:, None], -1)
        # Places and weights travel as one: the bits of a float32 are those of an int32.
        notes = torch.cat((here.int(), weights[token].view(torch.int32)), dim=1)
        rows, back = exchange.all_to_all(x[token], sizes)
        notes, _ = exchange.all_to_all(notes, sizes)
        here, shares = notes.chunk(2, dim=1)
        answers = self._experts(rows, here.long(), shares.contiguous().view(torch.float32))
        returned, _ = exchange.all_to_all(answers, back)
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        return total.index_add_(0, token, returned.float()).to(x.dtype)
