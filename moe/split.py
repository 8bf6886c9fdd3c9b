"""Tokens of a batch split over the replicas of their experts so that the greatest device load is least (phase 2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moe.arrays import Floats, Ints
from moe.expert_placement import ExpertPlacement
from moe.split_kernel import make_homes, make_work, split_layers


@dataclass(frozen=True)
class Split:
    tokens: Ints
    """[layers, slots]"""
    level: Floats
    """[layers]: the greatest of device load / speed."""


class Splitter:
    """Splits batch after batch over one placement; keeps what can be prepared. Not for two threads at once."""

    def __init__(self, placement: ExpertPlacement, speed: Floats) -> None:
        self._placement = placement
        self._speed = speed
        self._homes = make_homes(placement.start, placement.experts)
        self._work = make_work(placement.experts, placement.devices)

    def split(self, tokens: Ints) -> Split:
        """tokens [layers, experts] of a batch: whole ones to each slot, none more than needed to any device."""
        flow, level = self._run(np.asarray(tokens, np.float64), self._placement.expert, True)
        return Split(flow.astype(np.int64), level)

    def split_layer(self, layer: int, tokens: Ints) -> Ints:
        """[slots]: the tokens [experts] of one layer."""
        rows = np.asarray(tokens, np.float64)[None, :]
        flow, _ = self._run(rows, self._placement.expert[layer : layer + 1], True)
        return np.asarray(flow[0].astype(np.int64))

    def levels(self, load: Floats) -> Floats:
        """[layers]: the greatest device load / speed if load [layers, experts] could be split at will."""
        return self._run(np.ascontiguousarray(load, np.float64), self._placement.expert, False)[1]

    def flow(self, load: Floats) -> Floats:
        """[layers, slots]: load [layers, experts] split at will."""
        return self._run(np.ascontiguousarray(load, np.float64), self._placement.expert, False)[0]

    def _run(self, tokens: Floats, expert: Ints, whole: bool) -> tuple[Floats, Floats]:
        flow = np.empty(expert.shape)
        level = np.empty(len(expert))
        split_layers(tokens, expert, self._homes, self._speed, whole, flow, level, self._work)
        return flow, level


def even_levels(load: Floats, placement: ExpertPlacement, speed: Floats) -> Floats:
    """[layers]: the greatest device load / speed with every expert's load split evenly over its replicas."""
    share = np.concatenate([load / placement.replicas, np.zeros((len(load), 1))], axis=1)
    slots = np.take_along_axis(share, placement.expert, axis=1)
    total = np.concatenate([np.zeros((len(load), 1)), np.cumsum(slots, axis=1)], axis=1)
    device = np.diff(total[:, placement.start], axis=1)
    return np.asarray((device / speed).max(axis=1))


def balancedness(load: Floats, level: Floats, speed: Floats) -> Floats:
    """[layers]: mean device load over the greatest, each for its speed; 1 where there is no load."""
    mean = load.sum(axis=1) / speed.sum()
    return np.asarray(np.divide(mean, level, out=np.ones_like(mean), where=level > 0))
