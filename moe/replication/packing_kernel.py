"""Balanced packing, compiled: replicas in a given order, each to the device with the least load that has room."""

from __future__ import annotations

import math

from moe.arrays import Floats, Ints
from moe.replication.build_kernel import Recipe, Yard, count_replicas
from placement.compiled import compiled_apart, entry_point


@entry_point
def count_layers(
    load: Floats, order: Ints, slots: int, most: int, discount: float, power: float, yard: Yard, replicas: Ints
) -> None:
    """Fill replicas [layers, experts] as `count_replicas` does; `order` is by falling load."""
    for layer in range(load.shape[0]):
        count_replicas(load[layer], order[layer], slots, most, Recipe(discount, power, -1.0), yard)
        for expert in range(load.shape[1]):
            replicas[layer, expert] = yard.replicas[expert]


@entry_point
def pack_layers(
    item: Ints, share: Floats, start: Ints, speed: Floats, distinct: bool, yard: Yard, expert: Ints
) -> None:
    """Put item [layers, items], experts with their shares of load, in this order, into expert [layers, slots].

    With `distinct`, a replica beside another of its expert is left out.
    """
    for layer in range(item.shape[0]):
        for device in range(speed.size):
            yard.load[device] = 0.0
            yard.held[device] = 0
        for index in range(item.shape[1]):
            best, least = -1, math.inf
            for device in range(speed.size):
                level = yard.load[device] / speed[device]
                room = start[device + 1] - start[device] - yard.held[device]
                wanted = item[layer, index] if distinct else -1
                if level < least and room > 0 and not _has(expert[layer], start[device], yard.held[device], wanted):
                    best, least = device, level
            if best >= 0:
                expert[layer, start[best] + yard.held[best]] = item[layer, index]
                yard.held[best] += 1
                yard.load[best] += share[layer, index]


@entry_point
def fill_spare(load: Floats, order: Ints, replicas: Ints, start: Ints, speed: Floats, yard: Yard, expert: Ints) -> None:
    """Add the replicas beyond the first to empty slots of expert [layers, slots], each where the load is least."""
    for layer in range(load.shape[0]):
        for device in range(speed.size):
            yard.load[device] = 0.0
            yard.held[device] = 0
            for place in range(start[device], start[device + 1]):
                held = expert[layer, place]
                if held >= 0:
                    yard.held[device] += 1
                    yard.load[device] += load[layer, held] / replicas[layer, held]
        for index in range(load.shape[1]):
            added = order[layer, index]
            share = load[layer, added] / replicas[layer, added]
            for _ in range(replicas[layer, added] - 1):
                best, least = -1, math.inf
                for device in range(speed.size):
                    level = yard.load[device] / speed[device]
                    room = start[device + 1] - start[device] - yard.held[device]
                    if level < least and room > 0 and not _has(expert[layer], start[device], yard.held[device], added):
                        best, least = device, level
                if best >= 0:
                    expert[layer, start[best] + yard.held[best]] = added
                    yard.held[best] += 1
                    yard.load[best] += share


@compiled_apart
def _has(expert: Ints, begin: int, count: int, wanted: int) -> bool:
    for place in range(begin, begin + count):  # noqa: SIM110  (a generator would be compiled, and called)
        if expert[place] == wanted:
            return True
    return False
