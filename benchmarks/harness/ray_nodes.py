"""A Ray cluster of several nodes on this machine: each node is a process of Ray's, and can be killed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class RayNodes:
    """The first of `cpus` (devices by the node's name) is the head, which stays."""

    def __init__(self, cpus: Mapping[str, int]) -> None:
        from ray.cluster_utils import Cluster

        self._cores = sorted(os.sched_getaffinity(0))
        self._nodes: dict[str, Any] = {}
        self._cluster = Cluster()
        for name, count in cpus.items():
            self.start(name, count)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def start(self, name: str, cpus: int) -> None:
        with self._on_core(len(self._nodes), cpus):
            self._nodes[name] = self._cluster.add_node(num_cpus=cpus, node_name=name, include_dashboard=False)

    def kill(self, name: str) -> None:
        """As when the machine is switched off: nothing of it says anything any more."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()

    @contextmanager
    def _on_core(self, number: int, cpus: int) -> Iterator[None]:
        """A node of one device has a core of its own, as far as there are any: what is started inherits it."""
        before = os.sched_getaffinity(0)
        if cpus == 1:
            os.sched_setaffinity(0, {self._cores[number % len(self._cores)]})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


@contextmanager
def ray_nodes(cpus: Mapping[str, int]) -> Iterator[RayNodes]:
    """Started when entered, gone when left."""
    nodes = RayNodes(cpus)
    try:
        yield nodes
    finally:
        nodes.stop()
