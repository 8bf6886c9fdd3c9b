"""Gradients in one flat row, averaged over a group in equal chunks: each is handed over when the backward pass has
filled it, and goes when the wire has nothing more urgent."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from moe.training.groups import Group
from moe.training.wire import Carrier, Stream, Ticket


class ChunkedGradients:
    """Of some parameters: their `grad` lies in it for good, so empty it by `begin`, not by an optimizer's zero_grad."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: Group,
        wire: Carrier,
        stream: Stream,
        *,
        chunk_bytes: int,
        share: float,
    ) -> None:
        """`share` multiplies the sum over the group: one over the number of ranks gives the mean."""
        self._group, self._wire, self._stream, self._share = group, wire, stream, share
        backwards = list(reversed(parameters))  # about as the backward pass fills them
        sizes = [parameter.numel() for parameter in backwards]
        self.flat = torch.zeros(sum(sizes), device=backwards[0].device if backwards else None)
        size = max(1, chunk_bytes // self.flat.itemsize)
        # Who is alone with its parameters has nothing to exchange.
        self._chunks = list(self.flat.split(size)) if sizes and group.size > 1 else []
        self._parameters_in = [0] * len(self._chunks)
        start = 0
        for parameter, view in zip(backwards, self.flat.split(sizes), strict=True):
            parameter.grad = view.view_as(parameter)
            if self._chunks:
                touched = range(start // size, -(-(start + len(view)) // size))
                for chunk in touched:
                    self._parameters_in[chunk] += 1
                parameter.register_post_accumulate_grad_hook(lambda _, touched=touched: self._fill(touched))
            start += len(view)
        self._missing: list[int] = []
        self._tickets: list[Ticket] = []

    def begin(self) -> None:
        """Before a backward pass."""
        self.flat.zero_()
        self._missing = list(self._parameters_in)
        self._tickets = []

    def end(self) -> None:
        """After it: hand over what no gradient came for as well."""
        if not self._chunks:
            self.flat.mul_(self._share)
        while len(self._tickets) < len(self._chunks):
            self._hand_over()

    def wait(self) -> None:
        """Until all is averaged."""
        for ticket in self._tickets:
            ticket.wait()

    def _fill(self, touched: range) -> None:
        for chunk in touched:
            self._missing[chunk] -= 1
        while len(self._tickets) < len(self._chunks) and self._missing[len(self._tickets)] == 0:
            self._hand_over()

    def _hand_over(self) -> None:
        chunk = self._chunks[len(self._tickets)]
        self._tickets.append(self._wire.submit(self._stream, lambda: self._average(chunk)))

    def _average(self, chunk: Tensor) -> None:
        chunk.mul_(self._share)
        self._group.all_reduce(chunk)
