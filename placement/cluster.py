"""The hardware: nodes with devices. Knows nothing of models."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from placement.errors import InputError
from placement.units import Bytes

MAX_DEVICES = 100_000


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host with its devices, all of one kind."""

    name: Annotated[str, Meta(min_length=1)]
    devices: Annotated[int, Meta(ge=0)]
    memory: Bytes
    """What models may use on one device."""
    kind: str = "any"
    host_memory: Bytes = Bytes(0)
    """What parked models may use on this node."""
    load_bandwidth: float = 8e9
    """Bytes per second into one device from host memory."""

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ValueError(f"node name {self.name!r} has characters that cannot be printed")
        if "/" in self.name:
            raise ValueError(f"node name {self.name!r} must not hold a '/': devices are named node/number")
        if self.memory <= 0:
            raise ValueError(f"node {self.name!r} has no device memory; `memory` is bytes per device, above 0")
        if not 0 < self.load_bandwidth < float("inf"):
            raise ValueError(f"node {self.name!r}: load_bandwidth must be above 0 bytes per second")


class Device(NamedTuple):
    """One device of a cluster: `node` is the index of its node."""

    name: str
    node: int
    kind: str
    memory: int


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A pool of devices, in the order of the file."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two nodes are named {twice!r}; names must differ")
        total = sum(node.devices for node in self.nodes)
        if not 1 <= total <= MAX_DEVICES:
            raise ValueError(f"the cluster has {total} devices; between 1 and {MAX_DEVICES} are supported")

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(f"{node.name}/{index}", number, node.kind, int(node.memory))
            for number, node in enumerate(self.nodes)
            for index in range(node.devices)
        )

    @cached_property
    def device_index(self) -> dict[str, int]:
        return {device.name: index for index, device in enumerate(self.devices)}

    def first(self, count: int) -> Cluster:
        """The cluster of the first `count` devices in file order."""
        if not 1 <= count <= len(self.devices):
            raise InputError(f"--devices {count}: the cluster has {len(self.devices)} devices")
        nodes, left = [], count
        for node in self.nodes:
            if left > 0:
                nodes.append(msgspec.structs.replace(node, devices=min(left, node.devices)))
                left -= node.devices
        return Cluster(tuple(nodes))
