"""The experts of all devices for one device's tokens, trained: tokens travel in micro-batches.

While the experts compute one micro-batch, the next is on its way here and the one before on its way back. A token goes
to a device once, however many of its experts are there, with its weights, through which gradients flow as well.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from moe.experts import Experts
from moe.training.exchange import Travel, arrive, send
from moe.training.groups import Group
from moe.training.packing import Packing
from moe.training.wire import Carrier, Stream


class ParallelExperts(nn.Module):
    """A Compute whose places are experts. All ranks of the row call it at the same time, also with no tokens at all."""

    def __init__(self, experts: Experts, packing: Packing, row: Group, wire: Carrier, micro_batches: int = 2) -> None:
        """`experts` are those that the packing gives to this device."""
        super().__init__()
        assert len(experts.up) == packing.each
        assert row.size == packing.row
        assert micro_batches >= 1
        self.experts = experts
        self._packing, self._row, self._wire, self._micro_batches = packing, row, wire, micro_batches

    def forward(self, x: Tensor, choices: Tensor, weights: Tensor) -> Tensor:
        """x [tokens, hidden] float32, choices and weights [tokens, top_k]."""
        assert x.dtype == weights.dtype == torch.float32
        if self._row.size == 1:
            return self._answers(x, choices, weights)
        parts = [self._sorted(chosen) for chosen in choices.tensor_split(self._micro_batches)]
        leaves = torch.tensor([part.sizes for part in parts])
        arrives = self._exchange_sizes(leaves)
        out = [Travel(self._wire, self._row, *sizes) for sizes in zip(leaves.tolist(), arrives.tolist(), strict=True)]
        home = [Travel(self._wire, self._row, *sizes) for sizes in zip(arrives.tolist(), leaves.tolist(), strict=True)]
        sent = [
            send(torch.cat((rows[part.token], shares[part.token], part.places), dim=1), travel)
            for part, travel, rows, shares in zip(
                parts, out, x.tensor_split(self._micro_batches), weights.tensor_split(self._micro_batches), strict=True
            )
        ]
        answers = [
            send(self._answers(*_columns(arrive(rows, there), x.shape[1])), back)
            for rows, there, back in zip(sent, out, home, strict=True)
        ]
        return torch.cat(
            [
                x.new_zeros(part.tokens, x.shape[1]).index_add(0, part.token, arrive(rows, travel))
                for part, rows, travel in zip(parts, answers, home, strict=True)
            ]
        )

    def _answers(self, x: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        if not len(x):
            # The backward pass must come by here on all ranks alike: they wait for each other's gradients.
            return x + 0.0 * (self.experts.up[:0].sum() + self.experts.down[:0].sum())
        y: Tensor = self.experts(x, places, weights)
        return y

    def _sorted(self, choices: Tensor) -> _Part:
        """Which rows go to which device."""
        device, local = choices // self._packing.each, choices % self._packing.each
        targets = torch.arange(self._row.size, device=choices.device)
        is_needed = (device[None] == targets[:, None, None]).any(dim=-1)
        target, token = is_needed.nonzero(as_tuple=True)
        here = local[token].where(device[token] == target[:, None], -1)
        # As floats they travel in the same row as the token; numbers of slots are small enough.
        return _Part(len(choices), token, here.float(), is_needed.sum(dim=1).tolist())

    def _exchange_sizes(self, leaves: Tensor) -> Tensor:
        """[micro-batches, ranks] that leave -> that arrive."""
        gathered: list[Tensor] = []
        group = self._row
        self._wire.submit(Stream.TOKENS, lambda: gathered.append(group.all_gather(leaves))).wait()
        return gathered[0][:, :, group.rank].t()


def _columns(rows: Tensor, hidden: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, places and weights of rows that arrived."""
    x, weights, places = rows.split([hidden, *[(rows.shape[1] - hidden) // 2] * 2], dim=1)
    return x, places.detach().long(), weights


class _Part(NamedTuple):
    """One micro-batch, by the devices it goes to."""

    tokens: int
    token: Tensor
    """[rows]"""
    places: Tensor
    """[rows, top_k]: slots on the row's device; -1 for elsewhere."""
    sizes: list[int]
    """[devices]: rows for each."""
