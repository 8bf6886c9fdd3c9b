"""A Ray cluster as serving sees it: the nodes it has, and rooms in which groups of workers are started."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from placement.cluster import Cluster
from placement.errors import InputError
from serving.machines.nodes import ClusterNode, Named, make_cluster, name_nodes
from serving.machines.ray_launcher import ROOM_S, Joined, OnLine, RayHandle, RayLauncher, Spot, join, knock
from serving.parallel import Backend
from serving.worker.launcher import WorkerSpec
from serving.worker.places import Tcp
from serving.worker.room import Room

SECRET_BYTES = 32
KNOCK_S, MOST_SILENT = 2.0, 2
"""A node that leaves so many knocks in a row unanswered is gone."""
FETCH_S = 3600.0
"""Within which a node must have fetched the models it lacks."""


async def connect_ray(
    address: str | None, wanted: Cluster, on_line: OnLine | None = None, sources: Mapping[str, str] | None = None
) -> RayCluster:
    """`wanted`: kinds of devices, as name_nodes reads them; `sources`: where each directory of a model is fetched from
    by a node that lacks it."""
    cluster = RayCluster(await join(address), wanted, on_line, sources or {})
    await cluster.look()
    return cluster


class RayCluster(RayLauncher):
    """`devices` says what each device is on its node, `spots` beside that on which node, by id; both change as nodes
    come and go."""

    def __init__(self, joined: Joined, wanted: Cluster, on_line: OnLine | None, sources: Mapping[str, str]) -> None:
        super().__init__(joined, on_line)
        self.devices: dict[str, str] = {}
        self.spots: dict[str, str] = {}
        self._wanted, self._sources = wanted, dict(sources)
        self._nodes: dict[str, Named] = {}
        self._silent: dict[str, int] = {}
        """By a node's id, how many knocks in a row it has not answered."""
        self._hosts: dict[str, tuple[Any, str]] = {}
        """By the name of a worker that may be started, its actor and its node."""

    async def look(self) -> Cluster:
        """The nodes that are there now."""
        names = {one.node.id: name for name, one in self._nodes.items()}
        found = name_nodes(await self._answering(), self._wanted, names)
        self._nodes = {one.entry.name: one for one in found}
        for one in found:
            self.devices.update(one.devices)
            self.spots.update({device: f"{place}@{one.node.id}" for device, place in one.devices.items()})
        return make_cluster(found)

    async def _answering(self) -> list[ClusterNode]:
        """Those that are alive by Ray's account, but for those that have not answered a knock for a while: Ray takes
        half a minute to find out."""
        nodes = await asyncio.to_thread(read_nodes, self._ray)
        knocks = (knock(node.host, node.port, KNOCK_S) for node in nodes)
        heard = await asyncio.gather(*knocks, return_exceptions=True)
        self._silent = {
            node.id: self._silent.get(node.id, 0) + 1
            for node, error in zip(nodes, heard, strict=True)
            if isinstance(error, OSError)
        }
        return [node for node in nodes if self._silent.get(node.id, 0) < MOST_SILENT]

    @asynccontextmanager
    async def open_room(self, group: str, devices: tuple[str, ...]) -> AsyncIterator[Room]:
        """A placement group on the nodes that the plan says, whose first node tells where all meet."""
        nodes = [self._node_of(device) for device in devices]
        spots = [Spot(node=one.node.id, resource="GPU" if one.is_gpu else "CPU") for one in nodes]
        placement, actors = await self.place(f"group {group} on {', '.join(devices)}", spots)
        names = [f"{group}/{rank}" for rank in range(len(devices))]
        try:
            first = nodes[0].node.host
            ports, folder = await self.answer(actors[0].prepare.remote(first), ROOM_S, f"a worker of group {group}")
            await self._fetch(actors)
            for name, actor, one in zip(names, actors, nodes, strict=True):
                self._hosts[name] = actor, one.entry.name
            tcp = Tcp(host=first, secret=secrets.token_hex(SECRET_BYTES), ports=ports, folder=folder)
            yield Room(backend=_backend(nodes), tcp=tcp)
        finally:
            for name in names:
                self._hosts.pop(name, None)
            await self.leave(placement, actors)

    async def start(self, spec: WorkerSpec) -> RayHandle:
        """A worker of a group whose room is open."""
        if spec.name not in self._hosts:
            raise InputError(f"{spec.name}: no room is open for it")
        return await self.start_beside(*self._hosts[spec.name], spec)

    async def _fetch(self, actors: Sequence[Any]) -> None:
        """A node that has all answers at once."""
        if self._sources:
            asked = (self.answer(actor.fetch.remote(self._sources), FETCH_S, "models") for actor in actors)
            await asyncio.gather(*asked)

    def _node_of(self, device: str) -> Named:
        name = device.rpartition("/")[0]
        if name not in self._nodes:
            raise InputError(f"{device}: node {name!r} is not in the cluster at the moment")
        return self._nodes[name]


def read_nodes(ray: Any) -> list[ClusterNode]:
    """Those that are alive."""
    found = []
    for entry in ray.nodes():
        if entry["Alive"]:
            resources: dict[str, float] = entry["Resources"]
            kinds = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
            found.append(
                ClusterNode(
                    id=entry["NodeID"],
                    name=entry.get("NodeName") or entry["NodeManagerHostname"],
                    host=entry["NodeManagerAddress"],
                    port=entry["NodeManagerPort"],
                    cpus=int(resources.get("CPU", 0)),
                    gpus=int(resources.get("GPU", 0)),
                    accelerator=kinds[0] if kinds else "",
                )
            )
    return found


def _backend(nodes: list[Named]) -> Backend:
    if nodes[0].is_gpu:
        return "nccl"
    return "shared" if len({one.node.id for one in nodes}) == 1 else "gloo"
