"""Connects the processes of a group on one machine: who meets whom, and who makes the memory they share."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from serving.parallel import Parallel
from serving.parallel.base import Alone, Channel, Collectives
from serving.parallel.layout import Layout
from serving.parallel.meeting import Meeting, give_memory
from serving.parallel.region import Region, make_memory
from serving.parallel.ring import SharedChannel, channel_bytes
from serving.parallel.shared_memory import SharedCollectives, collectives_bytes


def connect_local(layout: Layout, directory: Path, wait_s: float) -> Parallel:
    meeting = Meeting(layout, directory, time.monotonic() + wait_s, wait_s)
    sockets = meeting.connect()
    try:
        following = None if layout.next is None else _first_end(sockets[layout.next])
        tensor = _stage(meeting, sockets)
        previous = None if layout.previous is None else _second_end(meeting, layout.previous, sockets)
        parallel = Parallel(tensor, previous, following)
        _warm_up(parallel, meeting)
    except BaseException:
        for each in sockets.values():
            each.close()
        raise
    return parallel


def _stage(meeting: Meeting, sockets: dict[int, socket.socket]) -> Collectives:
    layout = meeting.layout
    if layout.tp == 1:
        return Alone()
    first = layout.stage_ranks[0]
    peers = {rank - first: sockets[rank] for rank in layout.stage_ranks if rank != layout.rank}
    size = collectives_bytes(layout.tp)
    made = layout.tp_rank == 0
    descriptor = _shared_with(peers.values(), size) if made else meeting.take_memory(first, sockets[first])
    return SharedCollectives(Region(descriptor, size, touch=True), layout.tp_rank, layout.tp, peers)


def _first_end(bell: socket.socket) -> Channel:
    size = channel_bytes()
    return SharedChannel(Region(_shared_with([bell], size), size, touch=False), 0, bell)


def _second_end(meeting: Meeting, rank: int, sockets: dict[int, socket.socket]) -> Channel:
    region = Region(meeting.take_memory(rank, sockets[rank]), channel_bytes(), touch=False)
    return SharedChannel(region, 1, sockets[rank])


def _shared_with(peers: Iterable[socket.socket], size: int) -> int:
    descriptor = make_memory(size)
    try:
        for peer in peers:
            give_memory(peer, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _warm_up(parallel: Parallel, meeting: Meeting) -> None:
    """Compile now what would otherwise be compiled under the first request, and see that everything works."""
    reason = f"a neighbour of rank {meeting.rank} came, but did not finish connecting within {meeting.wait_s:g} s"
    watch = threading.Timer(meeting.left_s, parallel.abort, [reason])
    watch.start()
    try:
        number = torch.ones(1)
        parallel.tensor.all_reduce(number)
        assert parallel.tensor.all_gather(number).tolist() == [parallel.tensor.size] * parallel.tensor.size
        channels = [channel for channel in (parallel.previous, parallel.next) if channel is not None]
        for channel in channels:
            channel.send(number)
        for channel in channels:
            channel.receive()
    finally:
        watch.cancel()
