"""The least greatest device load of a batch, compiled: tokens of a replicated expert flow to any device that holds it.

The level is raised as in Dinkelbach's method: the tokens go out up to `level` of each device's speed; where some are
left, the experts and devices they reach (a least cut) need a higher one, exactly that; with whole tokens it is the next
at which whole capacities suffice. The last cut proves the level least. Nothing here allocates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from moe.arrays import Floats, Ints
from placement.compiled import compiled, compiled_apart, entry_point

EPSILON = 1e-9


class Homes(NamedTuple):
    """Which slots are where, of one layer. Slots stand device by device."""

    start: Ints
    """[devices + 1]: the slots of device d are start[d] to start[d + 1]."""
    device: Ints
    """[slots]"""
    expert: Ints
    """[slots]; -1 is an empty one."""
    first: Ints
    """[experts + 1]: the slots of expert e are slot[first[e]] to slot[first[e + 1]]."""
    slot: Ints
    """[slots]"""
    shared: Ints
    """[experts + 1]: those with several replicas, the fewest first; their number last."""
    crowd: Ints
    """[devices]: how many of these are on it."""


class Work(NamedTuple):
    """What the search for a path needs; sizes in brackets."""

    used: Floats
    """[devices]"""
    capacity: Floats
    """[devices]"""
    left: Floats
    """[experts]: tokens not yet sent anywhere."""
    reached: Ints
    """[devices]: the slot by which a device was reached, -1 if it was not."""
    source: Ints
    """[experts]: the slot from which an expert can give way, -1 if it has tokens left, -2 if it was not reached."""
    queue: Ints
    """[devices]"""
    tight: Ints
    """[devices]: 1 where the last cut says that the level is least; nowhere if all devices are equally loaded."""


def make_homes(start: Ints, experts: int) -> Homes:
    """`start` as in Homes; the rest is filled by `index_slots`."""
    devices, slots = start.size - 1, int(start[-1])
    return Homes(
        start,
        np.repeat(np.arange(devices), np.diff(start)),
        np.full(slots, -1, np.int64),
        np.zeros(experts + 1, np.int64),
        np.zeros(slots, np.int64),
        np.zeros(experts + 1, np.int64),
        np.zeros(devices, np.int64),
    )


def make_work(experts: int, devices: int) -> Work:
    def ints(size: int) -> Ints:
        return np.zeros(size, np.int64)

    return Work(
        np.zeros(devices),
        np.zeros(devices),
        np.zeros(experts),
        ints(devices),
        ints(experts),
        ints(devices),
        ints(devices),
    )


@compiled_apart
def index_slots(homes: Homes) -> None:
    """Fill `first`, `slot`, `shared` and `crowd` from `expert`."""
    first, slot, shared = homes.first, homes.slot, homes.shared
    experts = first.size - 1
    first[:] = 0
    for place in range(homes.expert.size):
        if homes.expert[place] >= 0:
            first[homes.expert[place] + 1] += 1
    number = 0
    for expert in range(experts):
        if first[expert + 1] > 1:
            shared[number] = expert
            number += 1
        first[expert + 1] += first[expert]
    shared[experts] = number
    total = first[experts]
    for place in range(homes.expert.size - 1, -1, -1):
        expert = homes.expert[place]
        if expert >= 0:
            first[expert + 1] -= 1
            slot[first[expert + 1]] = place
    for expert in range(experts):
        first[expert] = first[expert + 1]
    first[experts] = total
    _order_shared(homes)


@compiled_apart
def _order_shared(homes: Homes) -> None:
    first, shared = homes.first, homes.shared
    homes.crowd[:] = 0
    for number in range(shared[-1]):
        expert = shared[number]
        replicas = first[expert + 1] - first[expert]
        for index in range(first[expert], first[expert + 1]):
            homes.crowd[homes.device[homes.slot[index]]] += 1
        at = number
        while at > 0 and first[shared[at - 1] + 1] - first[shared[at - 1]] > replicas:
            shared[at] = shared[at - 1]
            at -= 1
        shared[at] = expert


@compiled_apart
def settle(tokens: Floats, homes: Homes, speed: Floats, whole: bool, flow: Floats, work: Work) -> float:
    """Fill flow [slots] so that the greatest of device load / speed is least; returns that."""
    level, total = _begin(tokens, homes, speed, flow, work)
    small = 0.0 if whole else EPSILON * total / max(1, tokens.size)
    _raise(level, whole, speed, work.capacity)
    _pour(homes, flow, work)
    while True:
        end = _search(homes, flow, work, small)
        if end == -2:
            break
        if end >= 0:
            _push(end, homes, flow, work)
            continue
        above = _level_of_cut(homes, speed, whole, work)
        if not above > level:  # only rounding is left
            _spill(homes, flow, work)
            break
        level = above
        _raise(level, whole, speed, work.capacity)
        for device in range(speed.size):
            work.tight[device] = work.reached[device] >= 0
        _drain(tokens, homes, flow, work)
        _pour(homes, flow, work)
    most = 0.0
    for device in range(speed.size):
        most = max(most, work.used[device] / speed[device])
    return most


@compiled_apart
def _begin(tokens: Floats, homes: Homes, speed: Floats, flow: Floats, work: Work) -> tuple[float, float]:
    """Send the tokens of experts with one replica where they must go; returns a level that no split can be below, and
    the number of all tokens."""
    for device in range(speed.size):
        work.used[device] = 0.0
        work.tight[device] = 0
    total = 0.0
    for place in range(homes.expert.size):
        flow[place] = 0.0
        expert = homes.expert[place]
        if expert >= 0 and homes.first[expert + 1] - homes.first[expert] == 1:
            flow[place] = tokens[expert]
            work.used[homes.device[place]] += tokens[expert]
            total += tokens[expert]
    for index in range(homes.shared[-1]):
        expert = homes.shared[index]
        work.left[expert] = tokens[expert]
        total += tokens[expert]
    speeds = 0.0
    for device in range(speed.size):
        speeds += speed[device]
    level, fullest = total / speeds, -1
    for device in range(speed.size):
        if work.used[device] / speed[device] > level:
            level, fullest = work.used[device] / speed[device], device
    if fullest >= 0:
        work.tight[fullest] = 1
    return level, total


@compiled_apart
def _raise(level: float, whole: bool, speed: Floats, capacity: Floats) -> None:
    for device in range(speed.size):
        most = level * speed[device]
        capacity[device] = math.floor(most * (1 + EPSILON) + EPSILON) if whole else most


@compiled_apart
def _drain(tokens: Floats, homes: Homes, flow: Floats, work: Work) -> None:
    """Take back what went to experts with several replicas."""
    for number in range(homes.shared[-1]):
        expert = homes.shared[number]
        work.left[expert] = tokens[expert]
        for index in range(homes.first[expert], homes.first[expert + 1]):
            slot = homes.slot[index]
            work.used[homes.device[slot]] -= flow[slot]
            flow[slot] = 0.0


@compiled_apart
def _pour(homes: Homes, flow: Floats, work: Work) -> None:
    """Send what fits, from the leaves inwards: a device that one open expert is left for takes what it can of that, an
    expert that one open device is left for goes there. All that fits where experts and devices form a forest; what
    lies on circles is sent wherever there is room, and may not be all."""
    opened, choices, queue = work.reached, work.source, work.queue
    tail = 0
    for device in range(opened.size):
        opened[device] = homes.crowd[device]
        if opened[device] == 1:
            queue[tail] = device
            tail += 1
    for number in range(homes.shared[-1]):
        expert = homes.shared[number]
        choices[expert] = homes.first[expert + 1] - homes.first[expert]
    head = 0
    while head < tail:
        device = queue[head]
        head += 1
        slot = _open_slot(device, homes, choices) if opened[device] == 1 else -1
        if slot < 0:
            continue
        expert = homes.expert[slot]
        _send(expert, slot, homes, flow, work)
        opened[device] = 0
        choices[expert] -= 1
        if choices[expert] == 1:
            for index in range(homes.first[expert], homes.first[expert + 1]):
                last = homes.device[homes.slot[index]]
                if opened[last] > 0:
                    _send(expert, homes.slot[index], homes, flow, work)
                    opened[last] -= 1
                    if opened[last] == 1:
                        queue[tail] = last
                        tail += 1
                    break
            choices[expert] = 0
    for number in range(homes.shared[-1]):
        expert = homes.shared[number]
        if work.left[expert] > 0:
            for index in range(homes.first[expert], homes.first[expert + 1]):
                _send(expert, homes.slot[index], homes, flow, work)


@compiled
def _open_slot(device: int, homes: Homes, choices: Ints) -> int:
    """The slot of a device whose expert has several replicas, and is open."""
    for slot in range(homes.start[device], homes.start[device + 1]):
        expert = homes.expert[slot]
        if expert >= 0 and homes.first[expert + 1] - homes.first[expert] > 1 and choices[expert] > 0:
            return slot
    return -1


@compiled
def _send(expert: int, slot: int, homes: Homes, flow: Floats, work: Work) -> None:
    device = homes.device[slot]
    amount = min(work.left[expert], work.capacity[device] - work.used[device])
    if amount > 0:
        flow[slot] += amount
        work.used[device] += amount
        work.left[expert] -= amount


@compiled_apart
def _search(homes: Homes, flow: Floats, work: Work, small: float) -> int:
    """A device with room that tokens can reach, others giving way; -1 if there is none, -2 if no tokens are left."""
    reached, source, queue = work.reached, work.source, work.queue
    reached[:] = -1
    tail = 0
    waiting = False
    for number in range(homes.shared[-1]):
        expert = homes.shared[number]
        source[expert] = -2
        if work.left[expert] > small:
            waiting = True
            source[expert] = -1
            tail = _reach(expert, homes, work, tail)
    if not waiting:
        return -2
    head = 0
    while head < tail:
        device = queue[head]
        head += 1
        if work.capacity[device] - work.used[device] > small:
            return int(device)
        for place in range(homes.start[device], homes.start[device + 1]):
            expert = homes.expert[place]
            if flow[place] > 0 and homes.first[expert + 1] - homes.first[expert] > 1 and source[expert] == -2:
                source[expert] = place
                tail = _reach(expert, homes, work, tail)
    return -1


@compiled
def _reach(expert: int, homes: Homes, work: Work, tail: int) -> int:
    for index in range(homes.first[expert], homes.first[expert + 1]):
        slot = homes.slot[index]
        device = homes.device[slot]
        if work.reached[device] < 0:
            work.reached[device] = slot
            work.queue[tail] = device
            tail += 1
    return tail


@compiled_apart
def _push(end: int, homes: Homes, flow: Floats, work: Work) -> None:
    """Send as much as the path to device `end` lets through."""
    amount = work.capacity[end] - work.used[end]
    expert = homes.expert[work.reached[end]]
    while work.source[expert] >= 0:
        amount = min(amount, flow[work.source[expert]])
        expert = homes.expert[work.reached[homes.device[work.source[expert]]]]
    amount = min(amount, work.left[expert])
    work.used[end] += amount
    slot = work.reached[end]
    flow[slot] += amount
    expert = homes.expert[slot]
    while work.source[expert] >= 0:
        flow[work.source[expert]] -= amount
        slot = work.reached[homes.device[work.source[expert]]]
        flow[slot] += amount
        expert = homes.expert[slot]
    work.left[expert] -= amount


@compiled_apart
def _level_of_cut(homes: Homes, speed: Floats, whole: bool, work: Work) -> float:
    """The least level at which the devices reached can take what they have and what is left of the experts reached."""
    need, speeds = 0.0, 0.0
    for number in range(homes.shared[-1]):
        need += work.left[homes.shared[number]]
    for device in range(speed.size):
        if work.reached[device] >= 0:
            need += work.used[device]
            speeds += speed[device]
    level = need / speeds
    while whole:
        room, higher = 0.0, math.inf
        for device in range(speed.size):
            if work.reached[device] >= 0:
                capacity = math.floor(level * speed[device] * (1 + EPSILON) + EPSILON)
                room += capacity
                higher = min(higher, (capacity + 1) / speed[device])
        if room >= need:
            break
        level = higher
    return level


@compiled_apart
def _spill(homes: Homes, flow: Floats, work: Work) -> None:
    for number in range(homes.shared[-1]):
        expert = homes.shared[number]
        if work.left[expert] > 0:
            slot = homes.slot[homes.first[expert]]
            flow[slot] += work.left[expert]
            work.used[homes.device[slot]] += work.left[expert]
            work.left[expert] = 0.0


@entry_point
def split_layers(
    tokens: Floats, expert: Ints, homes: Homes, speed: Floats, whole: bool, flow: Floats, level: Floats, work: Work
) -> None:
    """Split tokens [layers, experts] over the slots expert [layers, slots]: fills flow [layers, slots], level [layers].

    `homes` gives start and device, the same in every layer; the rest of it is scratch.
    """
    for layer in range(tokens.shape[0]):
        here = Homes(homes.start, homes.device, expert[layer], homes.first, homes.slot, homes.shared, homes.crowd)
        index_slots(here)
        level[layer] = settle(tokens[layer], here, speed, whole, flow[layer], work)
