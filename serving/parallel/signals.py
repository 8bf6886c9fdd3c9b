"""The compiled part of a ring: counters that one process raises and the other watches, asleep or not."""

from __future__ import annotations

from placement.compiled import entry_point
from serving.parallel.atomics import fence, load, memcpy, pause, store

SPINS = 2000
"""Looks at a counter before sleeping, some 50 us: about what waking up costs."""


@entry_point
def copy(target: int, source: int, size: int) -> None:
    memcpy(target, source, size)


@entry_point
def publish(counter: int, value: int, sleeping: int) -> bool:
    """Raise a counter; says whether its watcher sleeps and must be woken."""
    store(counter, value)
    fence()  # the watcher writes `sleeping` and then reads the counter
    if load(sleeping) == 0:
        return False
    store(sleeping, 0)
    return True


@entry_point
def reaches(counter: int, value: int) -> bool:
    """Whether the counter reaches the value within a short while."""
    for _ in range(SPINS):
        if load(counter) >= value:
            return True
        pause()
    return bool(load(counter) >= value)


@entry_point
def may_sleep(counter: int, value: int, sleeping: int) -> bool:
    """Announce sleep; says whether the counter is still below the value, so that a call to wake up will come."""
    store(sleeping, 1)
    fence()  # the other side raises the counter and then reads `sleeping`
    if load(counter) < value:
        return True
    store(sleeping, 0)
    return False
