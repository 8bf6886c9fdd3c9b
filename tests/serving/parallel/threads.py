"""The two ends of a channel, or the ranks of a stage, in one process: for laws that need many small worlds."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from serving.parallel.region import Region, make_memory
from serving.parallel.ring import SharedChannel, channel_bytes
from serving.parallel.shared_memory import SharedCollectives, collectives_bytes


@contextmanager
def two_ends(slots: int = 4, slot_bytes: int = 1024) -> Iterator[tuple[SharedChannel, SharedChannel]]:
    size = channel_bytes(slots, slot_bytes)
    memory = make_memory(size)
    bells = socket.socketpair()
    regions = Region(os.dup(memory), size, touch=False), Region(memory, size, touch=False)
    first, second = (SharedChannel(regions[end], end, bells[end], slots, slot_bytes) for end in (0, 1))
    try:
        yield first, second
    finally:
        first.close()
        second.close()


@contextmanager
def stage(size: int, slot_bytes: int) -> Iterator[list[SharedCollectives]]:
    length = collectives_bytes(size, slot_bytes)
    memory = make_memory(length)
    peers: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for low in range(size):
        for high in range(low + 1, size):
            peers[low][high], peers[high][low] = socket.socketpair()
    ranks = [
        SharedCollectives(Region(os.dup(memory), length, touch=False), rank, size, peers[rank], slot_bytes)
        for rank in range(size)
    ]
    os.close(memory)
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


def together(ranks: list[SharedCollectives], part: Callable[[SharedCollectives], Any]) -> list[Any]:
    """Run a part on all ranks at once, each in a thread of its own."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(part, ranks, timeout=60))
