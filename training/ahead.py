"""What an order would do to the jobs at hand if nobody came: run ahead, compared and improved. Compiled; nothing here
allocates, `Room` is what it works in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.compiled import compiled, entry_point
from training.arrays import Floats, Ints

ENDED, EQUAL, ABOVE = 1e-9, 1e-9, 1e300


class Room(NamedTuple):
    """Scratch, all [n]."""

    rest: Floats
    width: Ints
    running: Ints
    attempt: Ints

    @staticmethod
    def of(jobs: int) -> Room:
        return Room(np.empty(jobs), *(np.empty(jobs, np.int64) for _ in range(3)))


@entry_point
def time_there(order: Ints, left: Floats, gpus: Ints, capacity: int, horizon: float, limit: float, room: Room) -> float:
    """Seconds that the jobs, together, are still there until the horizon, when they run preemptively by first fit in
    this order; a very large number once it exceeds the limit."""
    return _time_there(order, left, gpus, capacity, horizon, limit, room)


@compiled
def _time_there(
    order: Ints, left: Floats, gpus: Ints, capacity: int, horizon: float, limit: float, room: Room
) -> float:
    rest, width, running = room.rest, room.width, room.running
    alive = order.size
    for at in range(alive):
        rest[at] = left[order[at]]
        width[at] = gpus[order[at]]
    now, total = 0.0, 0.0
    while alive > 0:
        free = capacity
        count = 0
        step = horizon - now
        for at in range(alive):
            if width[at] <= free:
                free -= width[at]
                running[count] = at
                count += 1
                step = min(step, rest[at])
                if free == 0:
                    break
        if count == alive:  # nobody waits any more
            for at in range(alive):
                total += min(rest[at], horizon - now)
            break
        total += step * alive
        now += step
        if total > limit:
            return ABOVE
        if count == 0 or now >= horizon:
            break
        gone = False
        for number in range(count):
            rest[running[number]] -= step
            gone = gone or rest[running[number]] <= ENDED
        if gone:
            kept = 0
            for at in range(alive):
                if rest[at] > ENDED:
                    rest[kept] = rest[at]
                    width[kept] = width[at]
                    kept += 1
            alive = kept
    return total


@entry_point
def let_pass(
    order: Ints, wish: Ints, left: Floats, gpus: Ints, capacity: int, horizon: float, total: float, room: Room
) -> None:
    """Reorder so that jobs run now in the order of `wish`, as far as the time that all are there (`total`) does not
    grow by it."""
    placed = 0
    free = capacity
    for number in range(wish.size):
        job = wish[number]
        if gpus[job] > free:
            continue
        position = placed
        while order[position] != job:
            position += 1
        for at in range(order.size):
            room.attempt[at] = order[at]
        for at in range(position, placed, -1):
            room.attempt[at] = order[at - 1]
        room.attempt[placed] = job
        if position > placed:
            limit = total * (1 + EQUAL)
            found = _time_there(room.attempt, left, gpus, capacity, horizon, limit, room)
            if found > limit:
                continue
            total = min(total, found)
        for at in range(order.size):
            order[at] = room.attempt[at]
        placed += 1
        free -= gpus[job]
        if free <= 0:
            break
