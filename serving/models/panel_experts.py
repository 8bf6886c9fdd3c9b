"""The experts of a layer on one CPU core: weights in panels, float32 or int8, and one compiled call for all of them.

The same signature as `moe.experts.Experts`. Experts are computed one after another, in the order of slots, whatever
else is in the batch: a token's result depends on nothing but the token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from moe.experts import Experts
from moe.steps import Activation
from placement.compiled import compiled, entry_point
from serving.attention.cpu_product import WIDTH
from serving.models.linear import Precision, quantise
from serving.models.panels import Panels, multiply
from serving.models.rows import gated_silu

MOST_ROWS = 256
"""Of one expert at a time: their activations shall stay in the caches, and the weights be read rarely."""
_ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh")
_SILU, _GELU = 0, 1
_ROOT_HALF, _TANH_SCALE = math.sqrt(0.5), math.sqrt(2 / math.pi)


class Bank(NamedTuple):
    """What a call needs to know of the experts."""

    matrices: Any  # [slots, 2, 5] as Panels.address
    is_int8: bool
    gated: int
    activation: int


class Room(NamedTuple):
    """What one call writes into: rows of one expert, and the choices of all."""

    taken: Any  # [rows, hidden]
    wide: Any  # [rows, outputs of up, padded]
    narrow: Any  # [rows, ffn]
    answers: Any  # [rows, hidden, padded]
    order: Any  # [choices]
    starts: Any  # [slots + 1]


@dataclass(frozen=True)
class PanelExpert:
    """One expert, packed; it may be part of several banks at once."""

    up: Panels
    down: Panels

    @cached_property
    def digest(self) -> int:
        """Of the packed weights: the same wherever the same expert was packed at the same precision."""
        return self.down.digest(self.up.digest())


def pack_expert(up: Tensor, down: Tensor, precision: Precision) -> PanelExpert:
    """up [ffn or 2 ffn, hidden], down [hidden, ffn], float."""
    return PanelExpert(_pack(up.detach(), precision), _pack(down.detach(), precision))


def _pack(weight: Tensor, precision: Precision) -> Panels:
    weight, scale = quantise(weight) if precision == "int8" else (weight, torch.ones(len(weight)))
    return Panels(weight, scale, torch.zeros(len(weight)))


class PanelExperts(nn.Module):
    """A bank of packed experts, one in each slot."""

    def __init__(self, held: Sequence[PanelExpert], like: Experts) -> None:
        """`like` says the sizes and the activation; its weights are not used."""
        super().__init__()
        self.held = list(held)
        _, self.hidden, self.ffn = like.down.shape
        self._wide = -(-like.up.shape[1] // WIDTH) * WIDTH
        matrices = [[expert.up.address, expert.down.address] for expert in self.held]
        self.bank = Bank(
            np.array(matrices, np.int64).reshape(len(self.held), 2, 5),
            is_int8=any(expert.up.is_int8 for expert in self.held),
            gated=int(like.gated),
            activation=_ACTIVATIONS.index(like.activation),
        )

    def forward(self, x: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        y = np.empty(x.shape, np.float32)
        room = self.room(len(x), places.numel(), len(self.held))
        x, places, weights = x.contiguous(), places.contiguous(), weights.contiguous()
        run_experts(x.numpy(), places.numpy(), weights.numpy(), self.bank, room, y)
        return torch.from_numpy(y)

    def room(self, tokens: int, choices: int, slots: int) -> Room:
        """For so many, or fewer slots.

        Not of torch's memory, which begins at a line of the caches, but all parts at the same place of a page: with it
        512 tokens of large experts took 15% longer.
        """
        rows = min(tokens, MOST_ROWS)
        return Room(
            taken=np.empty((rows, self.hidden), np.float32),
            wide=np.empty((rows, self._wide), np.float32),
            narrow=np.empty((rows, self.ffn), np.float32),
            answers=np.empty((rows, -(-self.hidden // WIDTH) * WIDTH), np.float32),
            order=np.empty(choices, np.int64),
            starts=np.empty(slots + 1, np.int64),
        )


@entry_point
def run_experts(x: Any, places: Any, weights: Any, bank: Any, room: Any, y: Any) -> None:
    """x, y [tokens, hidden]; places, weights [tokens, top_k]; a place is a slot of the bank, or -1."""
    slots = len(bank.matrices)
    starts = room.starts[: slots + 1]
    _sort(places, room.order, starts)
    y[:] = np.float32(0.0)
    top_k, most, hidden = places.shape[1], len(room.taken), x.shape[1]
    for slot in range(slots):
        first, stop = starts[slot], starts[slot + 1]
        while first < stop:
            count = min(most, stop - first)
            for row in range(count):
                token = room.order[first + row] // top_k
                for column in range(hidden):
                    room.taken[row, column] = x[token, column]
            multiply(room.taken, count, bank.matrices[slot, 0], bank.is_int8, room.wide)
            _activate(room.wide, room.narrow, count, bank.gated, bank.activation)
            multiply(room.narrow, count, bank.matrices[slot, 1], bank.is_int8, room.answers)
            for row in range(count):
                choice = room.order[first + row]
                token, share = choice // top_k, weights[choice // top_k, choice % top_k]
                for column in range(hidden):
                    y[token, column] += share * room.answers[row, column]
            first += count


@compiled
def _sort(places: Any, order: Any, starts: Any) -> None:
    """Flat indices of the choices by slot, each slot's in the order of tokens; starts [slots + 1]: where they begin."""
    tokens, top_k = places.shape
    for slot in range(len(starts)):
        starts[slot] = 0
    for token in range(tokens):
        for choice in range(top_k):
            if places[token, choice] >= 0:
                starts[places[token, choice]] += 1
    for slot in range(1, len(starts)):
        starts[slot] += starts[slot - 1]
    for token in range(tokens - 1, -1, -1):
        for choice in range(top_k - 1, -1, -1):
            slot = places[token, choice]
            if slot >= 0:
                starts[slot] -= 1
                order[starts[slot]] = token * top_k + choice


@compiled
def _activate(wide: Any, narrow: Any, rows: int, gated: int, activation: int) -> None:
    """wide [rows, ffn or 2 ffn, padded] -> narrow [rows, ffn]."""
    if gated and activation == _SILU:
        gated_silu(wide[:rows], narrow[:rows])
        return
    ffn = narrow.shape[1]
    for row in range(rows):
        for column in range(ffn):
            x = wide[row, column]
            if activation == _SILU:
                active = x / (1.0 + math.exp(-x))
            elif activation == _GELU:
                active = 0.5 * x * (1.0 + math.erf(x * _ROOT_HALF))
            else:
                active = 0.5 * x * (1.0 + math.tanh(_TANH_SCALE * (x + 0.044715 * x * x * x)))
            narrow[row, column] = active * wide[row, ffn + column] if gated else active
