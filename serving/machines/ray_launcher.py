"""Workers as processes beside Ray's actors, each in a placement group on the node that is wanted.

What is said to Ray is where processes begin and end; requests, tensors and signs of life go their own ways (links,
collectives). Ray pickles what its processes tell each other: a cluster is for a network that is trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from placement.errors import InputError
from serving.machines.worker_host import WorkerHost
from serving.worker.address import explain
from serving.worker.device import parse_device
from serving.worker.launcher import Exit, WorkerSpec

SHARE = 0.25
"""Of a device, as Ray counts, for whoever uses it: for a while it may hold a group, its successor and a job, and it is
the ledger that keeps owners apart."""
ROOM_S = 60.0
"""Within which Ray must have made room."""
ANSWER_S = 30.0
END_S = 5.0
"""What a node gets, beyond a worker's grace, to tell that it has ended."""
KNOCK_S = 5.0
HERE = Path("/tmp/ray/ray_current_cluster")

OnLine = Callable[[str, str, str], None]
"""(name of the worker, of its node, what it wrote)"""

_log = logging.getLogger(__name__)


async def join(address: str | None) -> Joined:
    """The cluster whose head is at `address`, or that this machine is a node of."""
    ray = import_ray()
    where = address or os.environ.get("RAY_ADDRESS") or _cluster_here()
    await _check(where)
    options = {"namespace": "penstock", "log_to_driver": False, "configure_logging": False}
    try:
        # In a thread, so that Ray leaves this process's signals alone.
        await asyncio.to_thread(ray.init, where, ignore_reinit_error=True, **options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise InputError(f"--address {where}: no Ray cluster can be joined there: {first_line(error)}") from error
    return Joined(ray, where)


def import_ray() -> Any:
    """Heavy, and an extra: only where it is asked for."""
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise InputError(f"--launcher ray: Ray is not installed here ({error}); install penstock[ray]") from error
    return ray


class Joined:
    """Ray itself, and the address of the cluster's head."""

    def __init__(self, ray: Any, address: str) -> None:
        self.ray, self.address = ray, address

    @property
    def host(self) -> str:
        """This machine, as the other nodes reach it."""
        return str(self.ray.util.get_node_ip_address())


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """A device's place, as Ray knows it."""

    node: str
    """Its id."""
    resource: str
    """CPU or GPU"""


class RayLauncher:
    """Starts each worker that names its node (`WorkerSpec.node`, by id) in a placement group of its own."""

    def __init__(self, joined: Joined, on_line: OnLine | None = None) -> None:
        self.joined, self._ray = joined, joined.ray
        self._on_line = on_line or _write_log
        self._endings: set[asyncio.Task[None]] = set()

    async def start(self, spec: WorkerSpec) -> RayHandle:
        kind = parse_device(spec.device).kind
        spots = [Spot(node=spec.node, resource="GPU" if kind == "cuda" else "CPU")]
        placement, actors = await self.place(spec.name, spots)
        try:
            handle = await self.start_beside(actors[0], spec.node[:8], spec)
        except BaseException:
            await self.leave(placement, actors)
            raise
        ending = asyncio.create_task(self._leave_after(handle, placement, actors), name=f"end of {spec.name}")
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return handle

    async def place(self, name: str, spots: Sequence[Spot]) -> tuple[Any, list[Any]]:
        """A placement group, with an actor for each spot."""
        is_one = len({spot.node for spot in spots}) == 1
        asking = asyncio.to_thread(  # it waits for Ray's head
            self._ray.util.placement_group,
            [{spot.resource: SHARE} for spot in spots],
            strategy="STRICT_PACK" if is_one else "PACK",
            bundle_label_selector=[{"ray.io/node-id": spot.node} for spot in spots],
            name=f"penstock-{name}-{secrets.token_hex(4)}",
        )
        placement = await self._unless_cancelled(asyncio.create_task(asking, name=f"room for {name}"))
        try:
            await self.answer(placement.ready(), ROOM_S, f"room for {name}")
            return placement, [self._make_actor(placement, rank, spot) for rank, spot in enumerate(spots)]
        except BaseException:
            await self.leave(placement, [])
            raise

    async def _unless_cancelled(self, making: asyncio.Task[Any]) -> Any:
        """The placement group; if nobody waits for it any more, it is removed once it is there."""
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            removing = asyncio.create_task(self._leave_made(making), name=f"leave {making.get_name()}")
            self._endings.add(removing)
            removing.add_done_callback(self._endings.discard)
            raise

    async def _leave_made(self, making: asyncio.Task[Any]) -> None:
        with contextlib.suppress(Exception):  # of Ray's own tree: there is none to remove
            await self.leave(await making, [])

    async def leave(self, placement: Any, actors: Sequence[Any]) -> None:
        """What still runs there is killed."""

        def end() -> None:
            for actor in actors:
                self._ray.kill(actor)
            self._ray.util.remove_placement_group(placement)

        await asyncio.to_thread(end)

    async def start_beside(self, actor: Any, node: str, spec: WorkerSpec) -> RayHandle:
        pid = await self.answer(actor.start.remote(msgspec.to_builtins(spec)), ANSWER_S, f"{spec.name} on {node}")
        return RayHandle(spec.name, node, pid, actor, self._on_line)

    async def answer(self, reference: Any, wait_s: float, what: str) -> Any:
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.wrap_future(reference.future())
        except TimeoutError:
            raise InputError(f"{what}: Ray had none within {wait_s:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise InputError(f"{what}: {first_line(error)}") from error

    def _make_actor(self, placement: Any, rank: int, spot: Spot) -> Any:
        where = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(placement, rank)
        options = {"num_gpus": SHARE, "num_cpus": 0} if spot.resource == "GPU" else {"num_cpus": SHARE}
        return self._ray.remote(WorkerHost).options(scheduling_strategy=where, **options).remote()

    async def _leave_after(self, handle: RayHandle, placement: Any, actors: Sequence[Any]) -> None:
        try:
            await handle.wait()
        finally:
            await self.leave(placement, actors)


class RayHandle:
    """A Handle of a worker beside an actor. One whose node does not answer counts as ended: cut off from all others, it
    ends itself."""

    def __init__(self, name: str, node: str, pid: int, actor: Any, on_line: OnLine) -> None:
        self.name, self.node, self.pid = name, node, pid
        self._actor, self._on_line = actor, on_line
        self._given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        actor.see_end.remote()
        self._exit = asyncio.create_task(self._follow(), name=f"worker {name}")

    async def wait(self) -> Exit:
        return await asyncio.shield(self._exit)

    async def terminate(self, grace_s: float) -> Exit:
        self._actor.terminate.remote(grace_s)
        self._give_up_after(grace_s + END_S)
        return await self.wait()

    def kill(self) -> None:
        self._actor.kill.remote()
        self._give_up_after(END_S)

    def _give_up_after(self, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._give_up)

    def _give_up(self) -> None:
        if not self._given_up.done():
            self._given_up.set_result(None)

    async def _follow(self) -> Exit:
        while True:
            told = asyncio.wrap_future(self._actor.follow.remote().future())
            await asyncio.wait((told, self._given_up), return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                told.cancel()
                return self._gone("it does not answer")
            try:
                lines, ended = told.result()
            except Exception as error:  # of Ray's own tree, which is not imported here: the actor is gone, or its node
                return self._gone(first_line(error))
            for line in lines:
                self._on_line(self.name, self.node, line)
            if ended is not None:
                return msgspec.convert(ended, Exit)

    def _gone(self, why: str) -> Exit:
        return Exit(name=self.name, code=None, signal=signal.SIGKILL, lines=(f"node {self.node}: {why}",))


def first_line(error: Exception) -> str:
    """Of what went wrong at the bottom of it: a task's error has its cause with it."""
    error = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _cluster_here() -> str:
    """Of which this machine is a node, as `ray start` has written it down."""
    try:
        return HERE.read_text().strip()
    except OSError:
        raise InputError("--launcher ray: this machine is no node of a Ray cluster; give --address") from None


async def knock(host: str, port: int, wait_s: float) -> None:
    """An OSError: nobody listens there, or not in time."""
    async with asyncio.timeout(wait_s):
        _, writer = await asyncio.open_connection(host, port)
    writer.close()


async def _check(where: str) -> None:
    """Whether anybody is there at all: Ray itself would try for minutes."""
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit() or int(port) >= 2**16 or "://" in where:
        raise InputError(f"--address {where!r}: give host:port of the cluster's head, on one of its nodes")
    try:
        await knock(host.strip("[]"), int(port), KNOCK_S)
    except OSError as error:  # TimeoutError is one
        raise InputError(f"--address {where}: no Ray cluster can be joined there: {explain(error)}") from None


def _write_log(worker: str, node: str, line: str) -> None:
    _log.info("%s on %s: %s", worker, node, line)
