"""Gandiva: time slices at mini-batch boundaries, packing while it pays, growth onto idle GPUs, migration.

Knows nothing of durations. Jobs take turns, a slice each; those that would wait are packed two to a device where
their memory fits and neither ran badly packed before; with devices for everybody, jobs move to faster kinds, elastic
ones grow, and spread ones move together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Bools, Floats, Ints
from training.growing import grown
from training.ordering import in_order
from training.view import Allocation, Information, View

HALF = 0.5


@dataclass(frozen=True)
class Gandiva:
    name: ClassVar[str] = "gandiva"
    slice_s: float = 60.0
    packs: bool = True
    strict: bool = False
    information: Information = "none"
    round_s: float = 0.0

    def allocate(self, view: View) -> Allocation:
        turns = np.floor(view.run_s / self.slice_s + 1e-9)
        enough = bool(view.gpus.sum() <= view.capacity.sum())
        workers = in_order(view, turns, self.strict, migrates=enough)
        waiting = workers.sum(axis=1) == 0
        share = view.share.copy()
        if waiting.any() and self.packs:
            pack(view, workers, share, waiting)
        if workers.any(axis=1).all():
            workers = grown(view, workers, np.ones(len(view)))
        still = bool((workers.sum(axis=1) == 0).any() or (share < view.share).any())
        wake = (np.floor(view.now / self.slice_s + 1e-9) + 1) * self.slice_s if still else np.inf
        return Allocation(workers, share, move=scattered(view, workers), wake=float(wake))


def pack(view: View, workers: Ints, share: Floats, waiting: Bools) -> None:
    """Put waiting jobs beside running ones of their size, half a device each; writes workers and share."""
    good = ~(view.packed < HALF) & (view.share == 1) & (view.most == view.gpus)
    memory = view.fleet.node_memory.min()
    hosts: dict[tuple[int, int], list[int]] = {}
    for job in np.flatnonzero(~waiting & good).tolist():
        hosts.setdefault((int(view.gpus[job]), int(workers[job].argmax())), []).append(job)
    for job in np.flatnonzero(waiting & good).tolist():
        for kind in np.argsort(-view.speed[job]).tolist():
            beds = hosts.get((int(view.gpus[job]), kind), [])
            host = next((other for other in beds if view.memory[other] + view.memory[job] <= memory), None)
            if host is not None and view.speed[job, kind] > 0:
                beds.remove(host)
                workers[job, kind] = view.gpus[job]
                share[[job, host]] = HALF
                break


def scattered(view: View, workers: Ints) -> Bools | None:
    """Jobs that run slower for being spread over nodes, where one node now has room for all of them."""
    if not (view.spread_speed < 1).any():
        return None
    move = np.zeros(len(view), np.bool_)
    room = view.node_free.copy()
    for job in np.flatnonzero((view.spread_speed < 1) & view.running).tolist():
        nodes = view.fleet.device_node[view.held[int(view.rows[job])]]
        count = len(nodes)
        if len(np.unique(nodes)) == 1 or (workers[job] != view.workers[job]).any():
            continue
        kind = view.fleet.node_kind == workers[job].argmax()
        own = np.bincount(nodes, minlength=len(room))
        fits = np.flatnonzero(kind & (room + own >= count))
        if len(fits):
            move[job] = True
            room += own
            room[fits[0]] -= count
    return move
