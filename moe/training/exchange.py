"""Rows to other devices and back, differentiable, while the caller goes on: `send` hands them over, `arrive` waits.

In the backward pass it is the other way round: what `arrive` is given goes back, and `send` waits for it. Autograd runs
the nodes made last first, so with several micro-batches the gradients of one travel while another is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from moe.training.groups import Group
from moe.training.wire import Carrier, Stream, Ticket


class Travel:
    """One exchange of rows: how many leave for each rank of the group, and how many arrive from each."""

    def __init__(self, wire: Carrier, group: Group, leaves: Sequence[int], arrives: Sequence[int]) -> None:
        self._wire, self._group, self._leaves, self._arrives = wire, group, leaves, arrives
        self._under_way: tuple[Ticket, Tensor] | None = None

    def there(self, rows: Tensor) -> Tensor:
        """Begin; where they will be."""
        return self._begin(rows, self._leaves, self._arrives)

    def back(self, rows: Tensor) -> None:
        self._begin(rows, self._arrives, self._leaves)

    def wait(self) -> Tensor:
        assert self._under_way is not None, "nothing is under way"
        (ticket, arriving), self._under_way = self._under_way, None
        ticket.wait()
        return arriving

    def _begin(self, rows: Tensor, leaves: Sequence[int], arrives: Sequence[int]) -> Tensor:
        assert self._under_way is None, "one way at a time"
        rows = rows.contiguous()
        arriving = rows.new_empty((sum(arrives), *rows.shape[1:]))
        group = self._group
        ticket = self._wire.submit(Stream.TOKENS, lambda: group.all_to_all(arriving, rows, arrives, leaves))
        self._under_way = ticket, arriving
        return arriving


def send(rows: Tensor, travel: Travel) -> Tensor:
    """For `arrive`; nothing may look into it before."""
    sent: Tensor = _Send.apply(rows, travel)  # type: ignore[no-untyped-call]
    return sent


def arrive(sent: Tensor, travel: Travel) -> Tensor:
    rows: Tensor = _Arrive.apply(sent, travel)  # type: ignore[no-untyped-call]
    return rows


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, travel: Travel) -> Tensor:
        ctx.travel = travel
        return travel.there(rows)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return ctx.travel.wait(), None


class _Arrive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent: Tensor, travel: Travel) -> Tensor:
        ctx.travel = travel
        return travel.wait().detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.travel.back(gradients[0])
        return gradients[0], None  # _Send takes what came back instead
