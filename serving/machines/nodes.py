"""The nodes of a cluster that others keep, as plans call them, with devices of the kinds that are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from placement.cluster import Cluster, Node
from placement.errors import InputError

ID_LETTERS = 6


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is alive, as its cluster tells."""

    id: str
    name: str
    host: str
    """Where others reach it."""
    port: int = 0
    """Where its own part of the cluster's machinery listens."""
    cpus: int
    gpus: int
    accelerator: str = ""
    """Of its GPUs, as the cluster calls them: A100."""


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has devices for us, by the name that plans call it."""

    node: ClusterNode
    entry: Node
    is_gpu: bool

    @property
    def devices(self) -> dict[str, str]:
        """node/number -> cpu:N or cuda:N."""
        kind = "cuda" if self.is_gpu else "cpu"
        return {f"{self.entry.name}/{number}": f"{kind}:{number}" for number in range(self.entry.devices)}


def name_nodes(nodes: Iterable[ClusterNode], wanted: Cluster, before: Mapping[str, str] | None = None) -> list[Named]:
    """The nodes that have devices of a wanted kind. An entry of `wanted` stands for all nodes of its kind: it says what
    models may use there, and the most devices to use of each. `before`: names that nodes have had, by id."""
    nodes = sorted(nodes, key=lambda node: (node.name, node.id))
    names = {node.id: before[node.id] for node in nodes if before is not None and node.id in before}
    found = []
    for node in nodes:
        entry = _entry(node, wanted.nodes)
        if entry is None:
            continue
        is_gpu = not _is_cpu(entry)
        if node.id not in names:
            plain = node.name.replace("/", "-")
            names[node.id] = plain if plain not in names.values() else f"{plain}-{node.id[:ID_LETTERS]}"
        count = min(entry.devices, node.gpus if is_gpu else node.cpus)
        if count:
            entry = msgspec.structs.replace(entry, name=names[node.id], devices=count)
            found.append(Named(node=node, entry=entry, is_gpu=is_gpu))
    return sorted(found, key=lambda one: one.entry.name)


def make_cluster(named: Sequence[Named]) -> Cluster:
    if not named:
        raise InputError("cluster: no node of it has devices of a kind that the configuration names")
    return Cluster(tuple(one.entry for one in named))


def _entry(node: ClusterNode, wanted: Iterable[Node]) -> Node | None:
    """A node with GPUs serves as none of CPUs; GPUs that have a name serve by that name, or as any."""
    if not node.gpus:
        return next((entry for entry in wanted if _is_cpu(entry)), None)
    of_gpus = [entry for entry in wanted if not _is_cpu(entry)]
    fitting = ("any", node.accelerator.lower())
    return next((entry for entry in of_gpus if not node.accelerator or entry.kind.lower() in fitting), None)


def _is_cpu(entry: Node) -> bool:
    return entry.kind.lower().startswith("cpu")
