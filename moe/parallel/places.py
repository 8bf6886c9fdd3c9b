"""Which slot of which device computes each choice of a batch, for one layer of a placement with replicas.

All devices come to the same answer by themselves: it depends on the choices alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from moe.arrays import Floats, Ints
from moe.expert_placement import ExpertPlacement
from moe.parallel.place_choices import place_choices
from moe.split import Splitter

SplitTokens = Callable[[Ints], Ints]
"""Choices of each expert [experts] -> how many of them each slot takes [slots], as `moe.split.Splitter` says."""


class Places:
    """Of one layer: slot s holds the expert `expert[s]` (-1: none), and device d has the slots start[d] to
    start[d + 1]. Without `split`, an expert's choices go evenly to its slots. One thread."""

    def __init__(self, expert: Ints, start: Ints, experts: int, split: SplitTokens | None = None) -> None:
        assert start[-1] == len(expert)
        self.experts = experts
        by_expert = np.argsort(expert, kind="stable")
        self._filled = by_expert[np.count_nonzero(expert < 0) :]
        """The slots in use, those of one expert beside each other."""
        self._replicas = np.bincount(expert[self._filled], minlength=experts)
        assert bool(np.all(self._replicas > 0)), "an expert lives nowhere"
        self._first = np.cumsum(self._replicas) - self._replicas
        self._split = split or self._evenly
        self.device: Ints = np.repeat(np.arange(len(start) - 1), np.diff(start))
        """[slots]: where each one is."""
        self.local: Ints = np.arange(len(expert)) - start[self.device]
        """[slots]: its number there."""
        self._slots: Ints = np.arange(len(expert))
        self._room = np.empty(experts, np.int64), np.empty(len(self._filled), np.int64)

    def assign(self, experts: Tensor, counts: Tensor | None = None, rank: int = 0) -> Tensor:
        """experts [tokens, top_k] -> the slot of each choice, among those of all devices.

        Where ranks have tokens of their own, counts [ranks, experts] are their choices, of which these are `rank`'s.
        """
        return self.named(self._slots, experts, counts, rank)

    def own(self, device: int) -> Ints:
        """[slots]: the number of each slot on one device; -1 for those elsewhere. For `named`."""
        return np.where(self.device == device, self.local, -1)

    def named(self, names: Ints, experts: Tensor, counts: Tensor | None = None, rank: int = 0) -> Tensor:
        """The same as `assign`, but names[slot] instead of each slot."""
        chosen = experts.cpu().numpy()
        if len(self._filled) == self.experts:
            return torch.from_numpy(names[self._filled][chosen]).to(experts.device)
        skipped = np.zeros(self.experts, np.int64)
        if counts is None:
            total = np.bincount(chosen.ravel(), minlength=self.experts)
        else:
            every = counts.cpu().numpy()
            total, skipped = every.sum(axis=0), every[:rank].sum(axis=0)
        found = np.empty(chosen.shape, np.int64)
        shares = self._split(total)
        place_choices(chosen, skipped, shares, self._filled, self._first, names, *self._room, found)
        return torch.from_numpy(found).to(experts.device)

    def _evenly(self, tokens: Ints) -> Ints:
        number = np.arange(len(self._filled)) - np.repeat(self._first, self._replicas)
        share, rest = np.divmod(tokens, self._replicas)
        taken = np.zeros(len(self._slots), np.int64)
        taken[self._filled] = np.repeat(share, self._replicas) + (number < np.repeat(rest, self._replicas))
        return taken


def places_of(placement: ExpertPlacement, layer: int, speed: Floats | None = None) -> Places:
    """Of one layer; choices go to replicas so that the most loaded device, each for its speed [devices], has least."""
    assert speed is None or speed.shape == (placement.devices,)
    splitter = Splitter(placement, np.ones(placement.devices) if speed is None else speed)
    return Places(
        placement.expert[layer],
        placement.start,
        placement.experts,
        lambda tokens: splitter.split_layer(layer, tokens),
    )
