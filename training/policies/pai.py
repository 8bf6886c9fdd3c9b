"""PAI (MLaaS in the wild): predicted shortest first, parts of GPUs, high-end GPUs kept for those that need them.

Nobody is preempted. Each job tries an ordered list of kinds: one whose computation efficiency on high-end GPUs (its
speed there against the best elsewhere) exceeds a threshold tries those first; the others pack onto weak GPUs first, and
take high-end ones only while many are idle. Within a kind the least loaded node is next; its CPUs count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Bools, Floats, Ints
from training.fleet import Fleet
from training.packing import KEPT, Asked, Room, place_gangs
from training.view import Allocation, Information, View

NEARLY = 0.9
"""Of the fastest kind's speed: as fast as that is high-end too."""


@dataclass(frozen=True)
class Pai:
    name: ClassVar[str] = "pai"
    shortest_first: bool = True
    """By predicted duration; else in order of arrival. Whoever fits goes (backfill)."""
    shares: bool = True
    """Whether a job that asks for a part of a GPU gets that; else it gets a whole one."""
    reserves: bool = True
    """Whether high-end GPUs are kept for high-GPU jobs; else load-balancing alone decides."""
    threshold: float = 1.5
    """Efficiency on high-end GPUs above which a job is high-GPU."""
    overflow: float = 0.5
    """The others take high-end GPUs only while no more than this part of their kind is taken."""
    information: Information = "predicted"
    round_s: float = 0.0

    def allocate(self, view: View) -> Allocation:
        share = view.share if self.shares else np.ones(len(view))
        workers = view.workers.copy()
        waiting = np.flatnonzero(~view.running)
        key = view.estimate_s if self.shortest_first else view.submit
        order = waiting[np.argsort(key[waiting], kind="stable")]
        high = high_end(view.fleet)
        weak_first = efficiency(view.speed, high) <= self.threshold if self.reserves else None
        plans = allocation_plans(view.speed, high, weak_first, loads(view), self.overflow)
        rows = place(view, order, share, plans)
        np.add.at(workers, (rows[:, 0], view.fleet.node_kind[rows[:, 1]]), rows[:, 2])
        return Allocation(workers, share, nodes=rows)


def high_end(fleet: Fleet) -> Bools:
    """Which kinds are nearly as fast as the fastest, [kinds]"""
    speeds = np.array([fleet.speeds.get(kind, 1.0) for kind in fleet.kinds])
    fast: Bools = speeds >= NEARLY * speeds.max()
    return fast


def efficiency(speed: Floats, high: Bools) -> Floats:
    """Of each job on high-end GPUs: its best speed there against its best elsewhere, [n]"""
    best = np.where(high, speed, 0.0).max(axis=1)
    other = np.where(high, 0.0, speed).max(axis=1)
    times: Floats = np.divide(best, other, out=np.full(len(speed), np.inf), where=other > 0)
    return times


def loads(view: View) -> Floats:
    """The part of each kind's devices that is taken, and of its CPUs, half each, [kinds]"""
    fleet, kinds = view.fleet, len(view.capacity)
    devices = np.bincount(fleet.device_kind, view.free, kinds) / np.maximum(fleet.capacity, 1)
    limited = np.where(np.isfinite(fleet.node_cpus), fleet.node_cpus, 0.0)
    free = np.bincount(fleet.node_kind, np.where(np.isfinite(fleet.node_cpus), view.free_cpus, 0.0), kinds)
    have = np.bincount(fleet.node_kind, limited, kinds)
    cpus = np.where(have > 0, free / np.maximum(have, 1e-9), 1.0)
    return np.asarray(1.0 - (devices + cpus) / 2, np.float64)


def allocation_plans(speed: Floats, high: Bools, weak_first: Bools | None, load: Floats, overflow: float = 1.0) -> Ints:
    """Kinds in the order to try them, [n, kinds], -1 beyond those it may use: by tier, then the least loaded."""
    kinds = len(load)
    # Jobs that can use the same kinds and try the same tier first have the same plans.
    code = (speed > 0) @ (1 << np.arange(kinds)) + (0 if weak_first is None else weak_first.astype(np.int64) << kinds)
    known, of = np.unique(code, return_inverse=True)
    plans = np.full((len(known), kinds), -1, np.int64)
    for row, each in enumerate(known.tolist()):
        usable = [kind for kind in range(kinds) if each >> kind & 1]
        weak = bool(each >> kinds)
        if weak and any(not high[kind] for kind in usable):
            usable = [kind for kind in usable if not high[kind] or load[kind] <= overflow]
        usable.sort(key=lambda kind: (weak_first is not None and bool(high[kind]) == weak, load[kind]))
        plans[row, : len(usable)] = usable
    return plans[of]


def place(view: View, order: Ints, share: Floats, plans: Ints) -> Ints:
    """Rows (job, node, workers) of the jobs that find room."""
    fleet = view.fleet
    nodes, kinds = len(view.open_nodes), len(view.capacity)
    room = Room(
        view.free.copy(),
        view.free_memory.copy(),
        view.free_cpus.copy(),
        fleet.node_cpus,
        fleet.node_first,
        fleet.node_size,
        np.argsort(fleet.node_kind, kind="stable"),
        np.searchsorted(np.sort(fleet.node_kind), np.arange(kinds + 1)),
        view.open_nodes,
    )
    asked = Asked(view.gpus, share, view.memory, view.cpus)
    rows = np.empty((int(view.gpus[order].sum()), 3), np.int64)
    failed = np.zeros((kinds, KEPT, 4)), np.zeros(kinds, np.int64)
    count = place_gangs(order, asked, plans, room, np.zeros(nodes, np.int64), *failed, rows)
    placed: Ints = rows[:count]
    return placed
