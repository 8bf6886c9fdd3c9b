"""A group as its controller sees it: starts its processes, gives orders, hands out requests and their answers.

Runs on the controller's event loop. When the group is lost, in whatever way, every open request and order fails with
the reason, and no process is left behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from placement.errors import InputError
from serving.engine.outputs import Answered, Output, Produced, Refused
from serving.parallel import Backend
from serving.sampling import SamplingParams
from serving.worker.connect import connect
from serving.worker.document import WorkerDocument
from serving.worker.launcher import Handle, Launcher, WorkerSpec
from serving.worker.link import Link
from serving.worker.messages import (
    Cancel,
    Done,
    Drain,
    Echo,
    Ended,
    Generate,
    Hello,
    Infer,
    Load,
    ModelSpec,
    ModelState,
    Order,
    Outputs,
    PlaceExperts,
    Report,
    Resume,
    Stop,
    Suspend,
    TakeRoutes,
    Unload,
)
from serving.worker.places import Tcp, make_places
from serving.worker.scratch import Scratch
from serving.worker.settings import LinkSettings

LOST = "lost"
"""The code of requests that go down with their group."""
GRACE_S = 2.0
"""What a group's processes get to end by themselves."""
FOREIGN_GRACE_S = 12.0
"""The same where servers of others have ten seconds of it (serving/engines/process.py)."""


class GroupSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a group in the plan's order: stage by stage, the tp devices of a stage beside each other."""

    name: str
    devices: tuple[str, ...]
    """cpu:N or cuda:N"""
    tp: int = 1
    pp: int = 1
    backend: Backend = "shared"
    tcp: Tcp | None = None
    """Links over TCP; without it, over sockets of this machine."""
    pace: float = 1.0
    """Above 1 the workers are paced: real, and this many times slower."""
    life_s: float = 2.0
    foreign: bool = False
    """Its models run on servers of others (serving/engines), which one process leads."""

    def __post_init__(self) -> None:
        if len(self.devices) != self.tp * self.pp:
            raise InputError(
                f"group {self.name}: {len(self.devices)} devices; shape ({self.tp}, {self.pp}) needs others"
            )


class RouteCounts(NamedTuple):
    """How often experts were chosen."""

    all: list[list[int]]
    """[layer with experts][expert]"""
    steps: list[list[list[int]]]
    """[layer with experts][step][expert], the newest step last; stages of a pipeline may be a step apart."""


class GroupLost(RuntimeError):  # noqa: N818  (it says what happened)
    """The group is gone; its one line says why."""


class RequestFailed(RuntimeError):  # noqa: N818
    """A request ended without an answer: `code` is stable, the text says it in words."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Group:
    """Made by `start_group`."""

    def __init__(self, spec: GroupSpec, scratch: Scratch) -> None:
        self.spec = spec
        self.handles: list[Handle] = []
        self.states: dict[str, ModelState] = {}
        """What each model has to do, as of its last step."""
        self.kind = "real"
        """real, paced or emulated, as its leader says."""
        self.heard: dict[str, float] = {}
        """When each model last answered (time.monotonic)."""
        self.on_lost: Callable[[str], None] = lambda reason: None
        self.gate = asyncio.Event()
        """Requests wait here while it is closed: the models are about to wake up."""
        self.gate.set()
        self._scratch = scratch
        self._places = make_places(scratch.path, spec.tcp, spec.backend)
        self._link: Link[Order, Report] | None = None
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._orders: dict[int, asyncio.Future[Done]] = {}
        self._open: dict[str, Callable[[Output], None]] = {}
        """By request, who takes what comes of it."""
        self._next_id = 0
        self._lost: str | None = None
        self._is_stopping = False
        self._watchers: list[asyncio.Task[None]] = []

    @property
    def lost(self) -> str | None:
        """Why the group is gone; None while it is there."""
        return self._lost

    async def load(self, model: ModelSpec) -> dict[str, Any]:
        """Bring a model onto the group; an InputError says why it cannot be."""
        return await self._order(lambda id: Load(id, model))

    async def unload(self, model: str) -> None:
        await self._order(lambda id: Unload(id, model))

    async def suspend(self, model: str) -> None:
        await self._order(lambda id: Suspend(id, model))

    async def resume(self, model: str) -> dict[str, Any]:
        """The facts of an engine of others say what it took: `wake_s`."""
        return await self._order(lambda id: Resume(id, model))

    async def place_experts(self, model: str, experts: list[list[list[int]]]) -> dict[str, Any]:
        """Bring a model's experts to other places (as ModelSpec.experts) while it serves; the facts say how many were
        `read`. After an InputError they are where they were."""
        return await self._order(lambda id: PlaceExperts(id, model, experts))

    async def take_routes(self, model: str) -> RouteCounts:
        """How often each expert was chosen since this was last asked, and in the last large steps one by one."""
        facts = await self._order(lambda id: TakeRoutes(id, model))
        return RouteCounts(facts["counts"], facts["steps"])

    async def drain(self) -> None:
        """Take no more requests, and wait until those that are open have ended."""
        await self._order(Drain)

    async def echo(self) -> None:
        """Returns when the main thread of every device has come to this order; of our own workers."""
        await self._order(Echo)

    async def generate(
        self, request: str, model: str, prompt: list[int], params: SamplingParams
    ) -> AsyncGenerator[Produced, None]:
        """The tokens of all answers as they come. Leaving the loop early cancels the request."""
        if not self.gate.is_set():
            await self.gate.wait()
        unfinished = params.n
        stream: asyncio.Queue[Output] = asyncio.Queue()
        self._begin(request, Generate(request, model, prompt, params), stream.put_nowait)
        try:
            while unfinished:
                output = await stream.get()
                if isinstance(output, Refused):
                    unfinished = 0
                    raise _failure(output)
                assert isinstance(output, Produced)
                unfinished -= output.finish is not None
                yield output
        finally:
            self._end(request, cancel=unfinished > 0)

    async def infer(
        self, request: str, model: str, inputs: list[list[int]], kinds: list[list[int]] | None = None
    ) -> NDArray[np.float32]:
        """float32 [inputs, width]"""
        answer = await self.answer(Infer(request, model, inputs, kinds))
        return np.frombuffer(answer.values, np.float32).reshape(answer.inputs, -1)

    async def answer(self, order: Infer) -> Answered:
        """What the group makes of it."""
        if not self.gate.is_set():
            await self.gate.wait()
        answer: asyncio.Future[Output] = asyncio.get_running_loop().create_future()

        def take(output: Output) -> None:
            if not answer.done():
                answer.set_result(output)

        self._begin(order.request, order, take)
        output: Output | None = None
        try:
            output = await answer
        finally:
            self._end(order.request, cancel=output is None)
        if isinstance(output, Refused):
            raise _failure(output)
        assert isinstance(output, Answered)
        return output

    def give_up(self, reason: str) -> None:
        """End the group as if it had died, for this reason."""
        self._lose(reason)

    async def stop(self, grace_s: float | None = None) -> None:
        """End all processes; requests that are open fail."""
        self._is_stopping = True
        if grace_s is None:
            grace_s = FOREIGN_GRACE_S if self.spec.foreign else GRACE_S
        if self._link is not None:
            self._link.send(Stop())
        ends = [asyncio.wait_for(handle.wait(), grace_s) for handle in self.handles]
        await asyncio.gather(*ends, return_exceptions=True)
        await asyncio.gather(*(handle.terminate(0.0) for handle in self.handles))
        self._lose("the group was stopped")
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._scratch.remove()

    async def start(self, launcher: Launcher, wait_s: float) -> None:
        """Start the processes and wait until all have met."""
        try:
            devices = self.spec.devices[:1] if self.spec.foreign else self.spec.devices
            for rank, device in enumerate(devices):
                self.handles.append(await launcher.start(self._worker(rank, device, wait_s)))
            self._watchers = [asyncio.create_task(self._watch(handle)) for handle in self.handles]
            connecting = asyncio.create_task(self._connect(wait_s))
            try:
                async with asyncio.timeout(wait_s):  # wait_for would lose a cancellation that comes with the hello
                    await asyncio.shield(self._hello)
            except TimeoutError:
                raise GroupLost(f"group {self.spec.name} was not ready within {wait_s:g} s") from None
            finally:
                connecting.cancel()
        except BaseException:
            await self.stop(grace_s=0.0)
            raise

    async def _connect(self, wait_s: float) -> None:
        settings = LinkSettings(life_s=self.spec.life_s, ping_s=self.spec.life_s / 4)
        self._link = await connect(
            self._places.control,
            Report,
            self._take,
            self._hung_up,
            secret=self._places.secret.encode() if self._places.secret else None,
            deadline_s=wait_s,
            settings=settings,
        )

    def _worker(self, rank: int, device: str, wait_s: float) -> WorkerSpec:
        spec = self.spec
        document = WorkerDocument(
            group=spec.name,
            device=device,
            tp=spec.tp,
            pp=spec.pp,
            rank=rank,
            leader=self._places.leader,
            control=self._places.control,
            rendezvous=self._places.rendezvous,
            backend=spec.backend,
            secret=self._places.secret,
            pace=spec.pace,
            connect_s=wait_s,
            life_s=spec.life_s,
            devices=spec.devices if spec.foreign else (),
        )
        return WorkerSpec(
            name=f"{spec.name}/{rank}",
            device=device,
            devices=spec.devices if spec.foreign else (),
            module="serving.engines" if spec.foreign else "serving.worker",
            document=msgspec.to_builtins(document),
        )

    async def _watch(self, handle: Handle) -> None:
        ended = await handle.wait()
        if not self._is_stopping:
            # The leader may still be saying why it ends; its word is better than the process's.
            await asyncio.sleep(0.5 if self._link is not None else 0.0)
            self._lose(f"group {self.spec.name}: {ended.reason}")

    async def _order(self, make: Callable[[int], Order]) -> dict[str, Any]:
        self._check()
        assert self._link is not None
        self._next_id = id = self._next_id + 1
        self._link.send(make(id))
        done: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._orders[id] = done
        try:
            answer = await done
        finally:
            self._orders.pop(id, None)
        if answer.error:
            raise InputError(answer.error)
        return answer.facts

    def _begin(self, request: str, order: Order, take: Callable[[Output], None]) -> None:
        self._check()
        if request in self._open:
            raise RequestFailed("invalid", f"request {request!r} is open already; ids must differ")
        assert self._link is not None
        try:
            self._link.send(order)
        except InputError as error:
            raise RequestFailed("invalid", str(error)) from error
        self._open[request] = take

    def _end(self, request: str, cancel: bool) -> None:
        self._open.pop(request, None)
        if cancel and self._link is not None:
            self._link.send(Cancel(request))

    def _check(self) -> None:
        if self._lost is not None:
            raise GroupLost(self._lost)

    def _take(self, link: Link[Order, Report], message: Report) -> None:
        match message:
            case Outputs(model, outputs, state):
                self.heard[model] = time.monotonic()
                if state is not None:
                    self.states[model] = state
                for output in outputs:
                    take = self._open.get(output.request)
                    if take is not None:
                        take(output)
            case Done(id):
                done = self._orders.pop(id, None)
                if done is not None and not done.done():
                    done.set_result(message)
            case Hello(kind=kind):
                self.kind = kind
                self._hello.set_result(message)
            case Ended(reason):
                self._lose(reason)

    def _hung_up(self, link: Link[Order, Report], reason: str) -> None:
        if not self._is_stopping:
            self._lose(f"the leader of {self.spec.name} is gone: {reason}")

    def _lose(self, reason: str) -> None:
        """The first reason stands. Nothing of the group may stay."""
        if self._lost is not None:
            return
        self._lost = reason
        self.gate.set()
        for handle in self.handles:
            handle.kill()
        for request, take in self._open.items():
            take(Refused(request, LOST, reason))
        for done in self._orders.values():
            if not done.done():
                done.set_exception(GroupLost(reason))
        self._orders.clear()
        if not self._hello.done():
            self._hello.set_exception(GroupLost(reason))
            self._hello.exception()
        if not self._is_stopping:
            self.on_lost(reason)


def _failure(refused: Refused) -> Exception:
    return GroupLost(refused.reason) if refused.code == LOST else RequestFailed(refused.code, refused.reason)


async def start_group(spec: GroupSpec, launcher: Launcher, wait_s: float = 60.0) -> Group:
    """Start a group's processes; returns when all have met. GroupLost says why they did not."""
    group = Group(spec, Scratch())
    await group.start(launcher, wait_s)
    return group
