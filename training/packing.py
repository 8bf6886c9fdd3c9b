"""Placing gangs that hold parts of devices, on nodes whose CPUs count: one after the other, kind by kind, the least
loaded node first. Compiled; nothing here allocates."""

from __future__ import annotations

from typing import NamedTuple

from placement.compiled import compiled, entry_point
from training.arrays import Bools, Floats, Ints

TINY = 1e-9
KEPT = 64
"""Failures of each kind that are remembered."""


class Room(NamedTuple):
    """What is free: of each device its share and memory, of each node its CPUs; and where the devices are."""

    share: Floats
    memory: Floats
    cpus: Floats
    node_cpus: Floats
    """CPUs of each node in all."""
    first: Ints
    size: Ints
    nodes: Ints
    """Sorted by kind; those of a kind are nodes[start[kind] : start[kind + 1]]."""
    start: Ints
    is_open: Bools


class Asked(NamedTuple):
    """What each worker of a job needs, and how many there are, [n]"""

    workers: Ints
    share: Floats
    memory: Floats
    cpus: Floats


@entry_point
def place_gangs(
    order: Ints, asked: Asked, plans: Ints, room: Room, fits: Ints, failed: Floats, fails: Ints, rows: Ints
) -> int:
    """Give each job of `order` its gang on the first kind of plans [n, kinds] (-1 ends them) that has room for it.

    Writes rows (job, node, workers) and returns how many; lowers `room`. `fits` [nodes], `failed` [kinds, KEPT, 4] and
    `fails` [kinds] (zeros) are room to work in: who needs no less than one that failed is not tried.
    """
    written = 0
    for position in range(order.size):
        job = order[position]
        for step in range(plans.shape[1]):
            kind = plans[job, step]
            if kind < 0:
                break
            if _hopeless(job, asked, failed, fails, kind):
                continue
            if _count_fits(job, asked, room, kind, fits) < asked.workers[job]:
                if fails[kind] < KEPT:
                    at = fails[kind]
                    failed[kind, at, 0] = asked.workers[job]
                    failed[kind, at, 1] = asked.share[job]
                    failed[kind, at, 2] = asked.memory[job]
                    failed[kind, at, 3] = asked.cpus[job]
                    fails[kind] += 1
                continue
            left = asked.workers[job]
            while left > 0:
                node = _best_node(left, room, kind, fits)
                count = min(left, fits[node])
                _take(job, asked, room, node, count)
                fits[node] = 0
                left -= count
                rows[written, 0] = job
                rows[written, 1] = node
                rows[written, 2] = count
                written += 1
            break
    return written


@compiled
def _hopeless(job: int, asked: Asked, failed: Floats, fails: Ints, kind: int) -> bool:
    for at in range(fails[kind]):
        if (
            asked.workers[job] >= failed[kind, at, 0]
            and asked.share[job] >= failed[kind, at, 1]
            and asked.memory[job] >= failed[kind, at, 2]
            and asked.cpus[job] >= failed[kind, at, 3]
        ):
            return True
    return False


@compiled
def _count_fits(job: int, asked: Asked, room: Room, kind: int, fits: Ints) -> int:
    """Workers that each node of the kind has room for, at most one a device; returns how many in all."""
    share, memory, cpus = asked.share[job], asked.memory[job], asked.cpus[job]
    total = 0
    for at in range(room.start[kind], room.start[kind + 1]):
        node = room.nodes[at]
        fits[node] = 0
        if not room.is_open[node] or room.cpus[node] + TINY < cpus:
            continue
        count = 0
        for device in range(room.first[node], room.first[node] + room.size[node]):
            if room.share[device] + TINY >= share and room.memory[device] >= memory:
                count += 1
        if cpus > 0 and count * cpus > room.cpus[node] + TINY:
            count = int((room.cpus[node] + TINY) / cpus)
        fits[node] = count
        total += count
    return total


@compiled
def _best_node(left: int, room: Room, kind: int, fits: Ints) -> int:
    """The least loaded of the nodes that hold all who are left, else the one that holds most of them."""
    best = -1
    load = 0.0
    for at in range(room.start[kind], room.start[kind + 1]):
        node = room.nodes[at]
        if fits[node] <= 0:
            continue
        here = _load(room, node)
        if best >= 0:
            holds, held = fits[node] >= left, fits[best] >= left
            if holds != held:
                if held:
                    continue
            elif not holds and fits[node] != fits[best]:
                if fits[node] < fits[best]:
                    continue
            elif here >= load:
                continue
        best, load = node, here
    return best


@compiled
def _load(room: Room, node: int) -> float:
    """The part of a node's devices that is taken, and of its CPUs, half each."""
    free = 0.0
    for device in range(room.first[node], room.first[node] + room.size[node]):
        free += room.share[device]
    load = 0.5 * (1 - free / room.size[node])
    if room.node_cpus[node] < 1e300:
        load += 0.5 * (1 - room.cpus[node] / room.node_cpus[node])
    return float(load)


@compiled
def _take(job: int, asked: Asked, room: Room, node: int, count: int) -> None:
    """The fullest devices with room, each once."""
    share, memory = asked.share[job], asked.memory[job]
    above = -1.0
    last = -1
    for _ in range(count):
        best = -1
        for device in range(room.first[node], room.first[node] + room.size[node]):
            free = room.share[device]
            if free + TINY < share or room.memory[device] < memory:
                continue
            if free < above or (free == above and device <= last):
                continue
            if best < 0 or free < room.share[best]:
                best = device
        above, last = room.share[best], best
        room.share[best] -= share
        room.memory[best] -= memory
    room.cpus[node] -= count * asked.cpus[job]
