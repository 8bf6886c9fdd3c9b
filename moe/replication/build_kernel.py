"""A layer's placement built from its loads, compiled: how many replicas each expert gets, and on which devices.

Replicated experts come first, the heaviest first. Each takes fresh devices for all its replicas but one, the bridge,
which goes beside a replica of another expert: so the devices hang together, and load can be handed on along the bridges
when it is not what was expected. Experts with one replica follow, each to the device with the least load for its speed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from moe.arrays import Floats, Ints
from moe.split_kernel import Homes
from placement.compiled import compiled_apart


class Recipe(NamedTuple):
    """How replicas are counted: the next goes to the greatest load ** power / (replicas - discount)."""

    discount: float
    power: float
    bridge: float
    """The share of tokens a bridge is thought to take, of what another replica takes; below 0: no bridges."""


class Yard(NamedTuple):
    """Scratch for building; sizes in brackets."""

    replicas: Ints
    """[experts]"""
    worth: Floats
    """[experts]"""
    held: Ints
    """[devices]: slots filled."""
    load: Floats
    """[devices]"""
    shared: Ints
    """[devices]: replicas of replicated experts on it."""
    mark: Ints
    """[devices]: the last expert placed there."""


def make_yard(experts: int, devices: int) -> Yard:
    def ints(size: int) -> Ints:
        return np.zeros(size, np.int64)

    return Yard(ints(experts), np.zeros(experts), ints(devices), np.zeros(devices), ints(devices), ints(devices))


@compiled_apart
def count_replicas(load: Floats, order: Ints, slots: int, most: int, recipe: Recipe, yard: Yard) -> None:
    """Replicas of each expert: one, and the others where the recipe says. `order` is by falling load."""
    replicas, worth = yard.replicas, yard.worth
    extra = slots - load.size
    for expert in range(load.size):
        replicas[expert] = 1
    candidates = min(load.size, extra)  # no other can be the greatest
    for index in range(candidates):
        worth[order[index]] = math.pow(load[order[index]], recipe.power)
    for _ in range(extra):
        best, most_worth = -1, -1.0
        for index in range(candidates):
            expert = order[index]
            value = worth[expert] / (replicas[expert] - recipe.discount)
            if replicas[expert] < most and value > most_worth:
                best, most_worth = expert, value
            if replicas[expert] == 1:
                break  # those behind it have one replica as well, and less load
        if best < 0:
            return
        replicas[best] += 1


@compiled_apart
def build(load: Floats, order: Ints, speed: Floats, recipe: Recipe, homes: Homes, yard: Yard) -> None:
    """Fill homes.expert with the replicas that were counted."""
    homes.expert[:] = -1
    for device in range(speed.size):
        yard.held[device] = 0
        yard.shared[device] = 0
        yard.load[device] = 0.0
        yard.mark[device] = -1
    begun = False
    for index in range(load.size):
        expert = order[index]
        replicas = yard.replicas[expert]
        if replicas < 2:
            continue
        share = load[expert] / replicas
        if begun and recipe.bridge >= 0:
            device = _bridge_device(homes, speed, yard)
            if device >= 0:
                replicas -= 1
                share = load[expert] / (replicas + recipe.bridge)
                _put(expert, device, share * recipe.bridge, homes, yard)
        begun = True
        for _ in range(replicas):
            device = _emptiest(expert, homes, speed, yard)
            if device >= 0:
                _put(expert, device, share, homes, yard)
        for device in range(speed.size):
            yard.shared[device] += yard.mark[device] == expert
    for index in range(load.size):
        expert = order[index]
        if yard.replicas[expert] < 2:
            _put(expert, _emptiest(expert, homes, speed, yard), load[expert], homes, yard)


@compiled_apart
def _bridge_device(homes: Homes, speed: Floats, yard: Yard) -> int:
    """Of the devices with a replicated expert: that with the fewest of these, then with the least load."""
    best = -1
    for device in range(speed.size):
        if yard.shared[device] == 0 or yard.held[device] >= homes.start[device + 1] - homes.start[device]:
            continue
        if (
            best < 0
            or yard.shared[device] < yard.shared[best]
            or (
                yard.shared[device] == yard.shared[best]
                and yard.load[device] * speed[best] < yard.load[best] * speed[device]
            )
        ):
            best = device
    return best


@compiled_apart
def _emptiest(expert: int, homes: Homes, speed: Floats, yard: Yard) -> int:
    """The device with room and the least load for its speed that does not hold the expert; -1 if there is none."""
    best, least = -1, math.inf
    for device in range(speed.size):
        if yard.held[device] < homes.start[device + 1] - homes.start[device] and yard.mark[device] != expert:
            level = yard.load[device] / speed[device]
            if level < least:
                best, least = device, level
    return best


@compiled_apart
def _put(expert: int, device: int, share: float, homes: Homes, yard: Yard) -> None:
    homes.expert[homes.start[device] + yard.held[device]] = expert
    yard.held[device] += 1
    yard.load[device] += share
    yard.mark[device] = expert
