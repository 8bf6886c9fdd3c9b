"""Who holds which device: finding room, taking, giving back. The one truth about devices; knows nothing of policies.

Whole devices go to jobs on as few nodes as can be (best fit), owned nodes before lent ones; parts of devices go where
least is left over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from training.arrays import Floats, Ints
from training.fleet import Fleet
from training.kernels import roomiest_nodes

Held = Mapping[int, Ints]
"""Devices by row."""
TINY = 1e-9


class Ledger:
    """`free` is the share of each device that nobody holds; `node_free` counts wholly free devices."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.free: Floats = np.ones(len(fleet.device_node))
        self.free_memory: Floats = fleet.node_memory[fleet.device_node]
        self.node_free: Ints = fleet.node_size.copy()
        self.node_cpus: Floats = fleet.node_cpus.copy()
        self.node_open = ~fleet.node_lendable
        self.held: dict[int, Ints] = {}
        self._needs: dict[int, tuple[float, float, float]] = {}
        """Share, memory and CPUs of a worker, by row."""
        self.tenants: dict[int, list[int]] = {}
        """Rows on each device that is held in parts."""
        self._disturbed: set[int] = set()
        self._nodes = [np.flatnonzero(fleet.node_kind == kind) for kind in range(len(fleet.kinds))]
        self._scratch = tuple(np.zeros(len(fleet.node_size), np.int64) for _ in range(3))

    @property
    def capacity(self) -> Ints:
        """Devices of open nodes, [kinds]"""
        fleet = self.fleet
        sizes = np.where(self.node_open, fleet.node_size, 0)
        return np.bincount(fleet.node_kind, sizes, len(fleet.kinds)).astype(np.int64)

    def nodes_of(self, row: int) -> Ints:
        """The nodes a job is on, with repeats: one entry a worker."""
        return self.fleet.device_node[self.held[row]]

    def find(
        self,
        kind: int,
        workers: int,
        share: float = 1.0,
        memory: float = 0.0,
        cpus: float = 0.0,
        emptiest: bool = False,
    ) -> Ints | None:
        """Devices for so many workers of one kind, on open nodes; None if there is no room."""
        nodes = self._nodes[kind]
        if share < 1:
            return self._find_parts(nodes, workers, share, memory, cpus, emptiest)
        count = roomiest_nodes(
            workers,
            nodes,
            self.node_open,
            self.node_free,
            self.fleet.node_lendable,
            self.node_cpus,
            cpus,
            self.fleet.node_memory,
            memory,
            *self._scratch,
        )
        _, chosen, taken = self._scratch
        return self._devices(chosen[:count].tolist(), taken[:count].tolist()) if count else None

    def find_on(
        self, nodes: Iterable[tuple[int, int]], share: float = 1.0, memory: float = 0.0, cpus: float = 0.0
    ) -> Ints | None:
        """Devices on the nodes a policy chose, as (node, workers): the fullest that have room, each once."""
        parts = []
        for node, workers in nodes:
            if not self.node_open[node] or self.node_cpus[node] + TINY < workers * cpus:
                return None
            devices = slice(self.fleet.node_first[node], self.fleet.node_first[node] + self.fleet.node_size[node])
            free = self.free[devices]
            fits = np.flatnonzero((free + TINY >= share) & (self.free_memory[devices] >= memory))
            if len(fits) < workers:
                return None
            parts.append(devices.start + fits[np.argsort(free[fits], kind="stable")[:workers]])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _devices(self, nodes: list[int], counts: list[int]) -> Ints:
        parts = []
        for node, workers in zip(nodes, counts, strict=True):
            first = self.fleet.node_first[node]
            whole = self.free[first : first + self.fleet.node_size[node]] >= 1
            parts.append(first + np.flatnonzero(whole)[:workers])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _find_parts(
        self, nodes: Ints, workers: int, share: float, memory: float, cpus: float, emptiest: bool
    ) -> Ints | None:
        """The fullest (or emptiest) devices that still have room, each once."""
        node = self.fleet.device_node
        open_here = np.zeros(len(self.node_open), np.bool_)
        open_here[nodes] = self.node_open[nodes] & (self.node_cpus[nodes] + TINY >= cpus)
        fits = open_here[node] & (self.free + TINY >= share) & (self.free_memory >= memory)
        candidates = np.flatnonzero(fits)
        free = self.free[candidates]
        candidates = candidates[np.argsort(-free if emptiest else free, kind="stable")]
        if cpus > 0 and len(candidates):  # a node's CPUs carry only so many of them
            rank = _rank_within(node[candidates])
            candidates = candidates[(rank + 1) * cpus <= self.node_cpus[node[candidates]] + TINY]
        return candidates[:workers] if len(candidates) >= workers else None

    def take(self, row: int, devices: Ints, share: float = 1.0, memory: float = 0.0, cpus: float = 0.0) -> None:
        """Give devices (found before) to a job, beside those it has."""
        node = self.fleet.device_node[devices]
        if share >= 1:
            self._count(node, -1)
        else:
            np.subtract.at(self.node_free, node, (self.free[devices] >= 1).astype(np.int64))
        self.free[devices] -= share
        self.free_memory[devices] -= memory
        assert (self.free[devices] > -TINY).all(), "a device was given twice"
        if cpus > 0:
            np.subtract.at(self.node_cpus, node, cpus)
        if share < 1:
            for device in devices.tolist():
                self._disturbed.update(self.tenants.get(device, ()))
                self.tenants.setdefault(device, []).append(row)
        mine = self.held.get(row)
        self.held[row] = devices if mine is None else np.concatenate((mine, devices))
        self._needs[row] = (share, memory, cpus)

    def give_back(self, row: int, devices: Ints | None = None) -> Ints:
        """Take devices (all it has by default) from a job; returns them."""
        mine = self.held.pop(row)
        share, memory, cpus = self._needs[row]
        if devices is None:
            devices = mine
            del self._needs[row]
        else:
            gone = set(devices.tolist())
            self.held[row] = np.array([device for device in mine.tolist() if device not in gone], np.int64)
        node = self.fleet.device_node[devices]
        if share >= 1:
            self.free[devices] = 1.0
            self._count(node, 1)
        else:
            free = self.free[devices] + share
            free[free > 1 - TINY] = 1.0
            self.free[devices] = free
            np.add.at(self.node_free, node, (free >= 1).astype(np.int64))
        self.free_memory[devices] += memory
        if cpus > 0:
            np.add.at(self.node_cpus, node, cpus)
        if share < 1:
            for device in devices.tolist():
                self.tenants[device].remove(row)
                self._disturbed.update(self.tenants[device])
                if not self.tenants[device]:
                    del self.tenants[device]
        return devices

    def can_reshare(self, row: int, share: float) -> bool:
        """Whether the job's devices have room for it to hold that much of each."""
        return bool((self.free[self.held[row]] + self.share_of(row) - share > -TINY).all())

    def reshare(self, row: int, share: float) -> None:
        """Let a job hold another share of the devices it has."""
        devices = self.held[row]
        _, memory, cpus = self._needs[row]
        self.give_back(row)
        self.take(row, devices, share, memory, cpus)

    def _count(self, nodes: Ints, sign: int) -> None:
        """A whole device more or less on each of the nodes."""
        if len(nodes) == 1:
            self.node_free[nodes[0]] += sign
        else:
            np.add.at(self.node_free, nodes, sign)

    def to_spare(self, row: int, kind: int, count: int) -> Ints:
        """Which of its devices of a kind a job gives up first: on lent nodes, then where it has fewest."""
        mine = self.held[row]
        mine = mine[self.fleet.device_kind[mine] == kind]
        nodes = self.fleet.device_node[mine].tolist()
        here = Counter(nodes)
        lent = self.fleet.node_lendable
        order = sorted(range(len(nodes)), key=lambda at: (not lent[nodes[at]], here[nodes[at]], nodes[at], at))
        spared: Ints = mine[order[:count]]
        return spared

    def disturbed(self) -> list[int]:
        """Rows that got or lost a neighbour on a device since last asked."""
        if not self._disturbed:
            return []
        rows = sorted(self._disturbed)
        self._disturbed.clear()
        return rows

    def share_of(self, row: int) -> float:
        return self._needs[row][0]


def _rank_within(groups: Ints) -> Ints:
    """For each entry, how many before it are of its group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    lengths = np.diff(np.concatenate((starts, [len(groups)])))
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(starts, lengths)
    return rank
