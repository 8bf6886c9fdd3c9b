"""The devices that train, as arrays: nodes with their kind, and which nodes belong to inference and are lent.

Built from placement's cluster; knows nothing of jobs. Who holds a device is the ledger's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from placement.cluster import Cluster, Node
from placement.errors import InputError
from placement.files import read_document
from placement.units import Bytes
from training.arrays import Bools, Floats, Ints
from training.jobs import Job

UNLIMITED = np.inf
DEVICE_MEMORY = Bytes(16 * 2**30)


@dataclass(frozen=True)
class Fleet:
    """`speeds`: a worker's throughput by kind, for jobs that give none; a kind that is absent runs at 1."""

    cluster: Cluster
    speeds: dict[str, float] = field(default_factory=dict)
    cpus: dict[str, float] = field(default_factory=dict)
    """CPUs of a node by device kind; a kind that is absent has enough of them."""
    lendable: frozenset[str] = frozenset()
    """Names of the nodes that belong to inference: open to training only while they are lent."""

    def __post_init__(self) -> None:
        for name in (*self.speeds, *self.cpus):
            if name not in self.kinds:
                raise InputError(f"kind {name!r} is not in the cluster, which has {', '.join(self.kinds)}")
        if any(not 0 < value < np.inf for value in self.speeds.values()):
            raise InputError("a kind's speed must be above 0 and finite")

    @staticmethod
    def of(gpus: int, kind: str = "any") -> Fleet:
        """One node with all devices: nothing to place."""
        return Fleet(Cluster((Node("n0", gpus, DEVICE_MEMORY, kind=kind),)))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.kind for node in self.cluster.nodes))

    @cached_property
    def node_kind(self) -> Ints:
        """[nodes]"""
        return np.array([self.kinds.index(node.kind) for node in self.cluster.nodes], np.int64)

    @cached_property
    def node_size(self) -> Ints:
        """Devices, [nodes]"""
        return np.array([node.devices for node in self.cluster.nodes], np.int64)

    @cached_property
    def node_first(self) -> Ints:
        """The number of each node's first device, [nodes]"""
        return np.concatenate(([0], np.cumsum(self.node_size)[:-1])).astype(np.int64)

    @cached_property
    def node_cpus(self) -> Floats:
        return np.array([self.cpus.get(node.kind, UNLIMITED) for node in self.cluster.nodes], np.float64)

    @cached_property
    def node_memory(self) -> Floats:
        """Bytes of one device, [nodes]"""
        return np.array([float(node.memory) for node in self.cluster.nodes], np.float64)

    @cached_property
    def node_lendable(self) -> Bools:
        return np.array([node.name in self.lendable for node in self.cluster.nodes], np.bool_)

    @cached_property
    def device_node(self) -> Ints:
        return np.repeat(np.arange(len(self.node_size)), self.node_size)

    @cached_property
    def device_kind(self) -> Ints:
        return self.node_kind[self.device_node]

    @cached_property
    def capacity(self) -> Ints:
        """Devices by kind, lent or not, [kinds]"""
        return np.bincount(self.node_kind, self.node_size, len(self.kinds)).astype(np.int64)

    def speed_of(self, job: Job) -> list[float]:
        """Throughput of a worker by kind, against the kind its duration is for; 0 where it cannot run, [kinds]"""
        for kind in (*job.speeds, *([job.kind] if job.kind else [])):
            if kind not in self.kinds:
                raise InputError(
                    f"job {job.id}: kind {kind!r} is not in the cluster, which has {', '.join(self.kinds)}"
                )
        fits = self._has_room_for(job)
        return [speed if room else 0.0 for speed, room in zip(self._speeds(job), fits, strict=True)]

    def _speeds(self, job: Job) -> list[float]:
        """Whatever else a worker needs, [kinds]"""
        if job.speeds:
            named = job.kind or next(kind for kind in self.kinds if job.speeds.get(kind))
            return [job.speeds.get(kind, 0.0) / job.speeds[named] for kind in self.kinds]
        if job.kind and not self.speeds:
            return [1.0 if kind == job.kind else 0.0 for kind in self.kinds]
        reference = self.speeds.get(job.kind or self.kinds[0], 1.0)
        return [self.speeds.get(kind, 1.0) / reference for kind in self.kinds]

    def _has_room_for(self, job: Job) -> list[bool]:
        """Whether a node of the kind has the memory and CPUs of a worker; an InputError where none has."""
        memory, cpus = self._most
        fits = [job.memory <= most and job.cpus <= cores for most, cores in zip(memory, cpus, strict=True)]
        if any(fits):
            return fits
        if job.memory > max(memory):
            raise InputError(
                f"job {job.id}: needs {job.memory:.4g} bytes of a device's memory; none has over {max(memory):.4g}"
            )
        raise InputError(f"job {job.id}: needs {job.cpus:g} CPUs a worker; no node with its memory has so many")

    @cached_property
    def _most(self) -> tuple[list[float], list[float]]:
        """The memory of a device and the CPUs of a node, at most, [kinds]"""
        kinds = range(len(self.kinds))
        return (
            [float(self.node_memory[self.node_kind == kind].max()) for kind in kinds],
            [float(self.node_cpus[self.node_kind == kind].max()) for kind in kinds],
        )


class _ClusterDocument(msgspec.Struct, frozen=True):
    """A problem file, of which only the cluster matters here."""

    cluster: Cluster


def read_cluster(path: Path) -> Cluster:
    """The cluster part of a problem (or a file that holds only it)."""
    return read_document(path, _ClusterDocument).cluster
