"""A Ray cluster: the nodes it has, and rooms in which groups of workers are started, each an actor beside a worker.

What is said to Ray is where processes begin and end; requests, tensors and signs of life go their own ways (links,
collectives). Ray pickles what its processes tell each other: a cluster is for a network that is trusted.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from placement.cluster import Cluster
from placement.errors import InputError
from serving.machines.nodes import ClusterNode, Named, make_cluster, name_nodes
from serving.machines.worker_host import WorkerHost
from serving.worker.launcher import Exit, WorkerSpec
from serving.worker.places import Tcp
from serving.worker.room import Room

SHARE = 0.25
"""Of a device, as Ray counts, for whoever uses it: for a while it may hold a group, its successor and a job, and it is
the ledger that keeps owners apart."""
ROOM_S = 60.0
"""Within which Ray must have made room for a group."""
ANSWER_S = 30.0
END_S = 5.0
"""What a node gets, beyond a worker's grace, to tell that it has ended."""
SECRET_BYTES = 32

OnLine = Callable[[str, str, str], None]
"""(name of the worker, of its node, what it wrote)"""

_log = logging.getLogger(__name__)


async def connect_ray(address: str | None, wanted: Cluster, on_line: OnLine | None = None) -> RayCluster:
    """The cluster that is at `address`, or that this machine is a node of. `wanted`: kinds of devices, as name_nodes
    reads them."""
    if address is not None and "://" in address:
        raise InputError(f"--address {address!r}: give host:port of the cluster's head, from one of its nodes")
    ray = import_ray()
    where = address or "auto"
    options = {"namespace": "penstock", "log_to_driver": False, "configure_logging": False}
    try:
        # In a thread, so that Ray leaves this process's signals alone.
        await asyncio.to_thread(ray.init, where, ignore_reinit_error=True, **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        said = str(error).strip().splitlines()
        raise InputError(
            f"--address {where}: no Ray cluster can be joined there: {said[0] if said else error}"
        ) from error
    cluster = RayCluster(ray, wanted, on_line or _write_log)
    await cluster.look()
    return cluster


def import_ray() -> Any:
    """Heavy, and an extra: only where it is asked for."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise InputError(f"--launcher ray: Ray is not installed here ({error}); install penstock[ray]") from error
    return ray


class RayCluster:
    """`devices` says what each device is on its node, and changes as nodes come and go."""

    def __init__(self, ray: Any, wanted: Cluster, on_line: OnLine) -> None:
        self.devices: dict[str, str] = {}
        self._ray, self._wanted, self._on_line = ray, wanted, on_line
        self._nodes: dict[str, Named] = {}
        self._hosts: dict[str, tuple[Any, str]] = {}
        """By the name of a worker that may be started, its actor and its node."""

    async def look(self) -> Cluster:
        """The nodes that are there now."""
        names = {one.node.id: name for name, one in self._nodes.items()}
        found = name_nodes(await asyncio.to_thread(read_nodes, self._ray), self._wanted, names)
        self._nodes = {one.entry.name: one for one in found}
        for one in found:
            self.devices.update(one.devices)
        return make_cluster(found)

    @asynccontextmanager
    async def open_room(self, group: str, devices: tuple[str, ...]) -> AsyncIterator[Room]:
        """A placement group with an actor for each device, on the nodes that the plan says."""
        nodes = [self._node_of(device) for device in devices]
        is_one = len({one.node.id for one in nodes}) == 1
        placement = self._ray.util.placement_group(
            [{"GPU" if one.is_gpu else "CPU": SHARE} for one in nodes],
            strategy="STRICT_PACK" if is_one else "PACK",
            bundle_label_selector=[{"ray.io/node-id": one.node.id} for one in nodes],
            name=f"penstock-{group}-{secrets.token_hex(4)}",
        )
        names = [f"{group}/{rank}" for rank in range(len(devices))]
        actors: list[Any] = []
        try:
            await self._answer(placement.ready(), ROOM_S, f"room for group {group} on {', '.join(devices)}")
            actors = [self._place(placement, rank, one) for rank, one in enumerate(nodes)]
            first = nodes[0].node.host
            ports, folder = await self._answer(actors[0].prepare.remote(first), ROOM_S, f"a worker of group {group}")
            for name, actor, one in zip(names, actors, nodes, strict=True):
                self._hosts[name] = actor, one.entry.name
            tcp = Tcp(host=first, secret=secrets.token_hex(SECRET_BYTES), ports=ports, folder=folder)
            backend = "nccl" if nodes[0].is_gpu else "shared" if is_one else "gloo"
            yield Room(backend=backend, tcp=tcp)  # type: ignore[arg-type]
        finally:
            for name in names:
                self._hosts.pop(name, None)
            for actor in actors:
                self._ray.kill(actor)
            self._ray.util.remove_placement_group(placement)

    async def start(self, spec: WorkerSpec) -> RayHandle:
        """A worker of a group whose room is open."""
        if spec.name not in self._hosts:
            raise InputError(f"{spec.name}: no room is open for it")
        actor, node = self._hosts[spec.name]
        pid = await self._answer(actor.start.remote(msgspec.to_builtins(spec)), ANSWER_S, f"{spec.name} on {node}")
        return RayHandle(spec.name, node, pid, actor, self._on_line)

    def _place(self, placement: Any, rank: int, one: Named) -> Any:
        """An actor in a place of the group's."""
        where = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(placement, rank)
        options = {"num_gpus": SHARE, "num_cpus": 0} if one.is_gpu else {"num_cpus": SHARE}
        return self._ray.remote(WorkerHost).options(scheduling_strategy=where, **options).remote()

    def _node_of(self, device: str) -> Named:
        name = device.rpartition("/")[0]
        if name not in self._nodes:
            raise InputError(f"{device}: node {name!r} is not in the cluster at the moment")
        return self._nodes[name]

    async def _answer(self, reference: Any, wait_s: float, what: str) -> Any:
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.wrap_future(reference.future())
        except TimeoutError:
            raise InputError(f"{what}: Ray had none within {wait_s:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise InputError(f"{what}: {_first_line(error)}") from error


class RayHandle:
    """A Handle of a worker beside an actor."""

    def __init__(self, name: str, node: str, pid: int, actor: Any, on_line: OnLine) -> None:
        self.name, self.node, self.pid = name, node, pid
        self._actor, self._on_line = actor, on_line
        actor.see_end.remote()
        self._exit = asyncio.create_task(self._follow(), name=f"worker {name}")

    async def wait(self) -> Exit:
        return await asyncio.shield(self._exit)

    async def terminate(self, grace_s: float) -> Exit:
        self._actor.terminate.remote(grace_s)
        await asyncio.wait((self._exit,), timeout=grace_s + END_S)
        if not self._exit.done():
            self._exit.cancel()  # its node does not answer; what is there dies with its actor
            return self._gone("its node does not answer")
        return await self.wait()

    def kill(self) -> None:
        self._actor.kill.remote()

    async def _follow(self) -> Exit:
        while True:
            try:
                lines, ended = await asyncio.wrap_future(self._actor.follow.remote().future())
            except Exception as error:  # of Ray's own tree, which is not imported here: the actor is gone, or its node
                return self._gone(_first_line(error))
            for line in lines:
                self._on_line(self.name, self.node, line)
            if ended is not None:
                return msgspec.convert(ended, Exit)

    def _gone(self, why: str) -> Exit:
        return Exit(name=self.name, code=None, signal=signal.SIGKILL, lines=(f"node {self.node}: {why}",))


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
                    cpus=int(resources.get("CPU", 0)),
                    gpus=int(resources.get("GPU", 0)),
                    accelerator=kinds[0] if kinds else "",
                )
            )
    return found


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _write_log(worker: str, node: str, line: str) -> None:
    _log.info("%s on %s: %s", worker, node, line)
