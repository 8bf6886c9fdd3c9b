"""The leader of a group whose models run on servers of others: speaks with the controller as a leader of our own
workers does, and with the servers in OpenAI's words. It computes nothing; one event loop is all it has.

A server that dies without having been told to is the end of the group, as a worker's death is.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from placement.errors import InputError
from serving.engine.outputs import Answered, Output, Produced, Refused
from serving.engines.exchange import ExchangeFailed
from serving.engines.launch import Launch
from serving.engines.server import ModelServer
from serving.engines.vllm import resolved
from serving.worker.control import Control
from serving.worker.document import WorkerDocument
from serving.worker.messages import (
    Cancel,
    Done,
    Drain,
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
    Resume,
    Stop,
    Suspend,
    TakeRoutes,
    Unload,
)

LAST_WORDS_S = 0.2


@dataclass
class Held:
    """A model of this group."""

    server: ModelServer
    is_suspended: bool = False
    busy_s: float = 0.0
    """How long it had requests, up to `since`."""
    since: float = 0.0
    open: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)
    """Of this turn of the loop, to be told together."""


class ForeignLeader:
    def __init__(self, document: WorkerDocument) -> None:
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The process's exit code."""
        self._document = document
        self._models: dict[str, Held] = {}
        self._coming: set[str] = set()
        self._drains: list[int] = []
        self._is_draining = False
        self._control = Control(document, self._greet, self._obey, lambda reason: self._end(1))
        self._report = self._control.report
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Until the controller says Stop, or it or a server is gone; the exit code."""
        await self._control.listen()
        code = await self.over
        await asyncio.gather(*(held.server.stop() for held in self._models.values()), return_exceptions=True)
        return code

    # The controller

    def _greet(self) -> None:
        document = self._document
        self._report(Hello(document.group, document.tp, document.pp, [os.getpid()]))

    def _lose(self, reason: str) -> None:
        """The controller is told why, and all is over."""
        if not self.over.done():
            self._report(Ended(f"group {self._document.group}: {reason}"))
            asyncio.get_running_loop().call_later(LAST_WORDS_S, self._end, 1)

    def _end(self, code: int) -> None:
        if not self.over.done():
            self.over.set_result(code)

    def _obey(self, order: Order) -> None:
        match order:
            case Generate() | Infer():
                self._submit(order)
            case Cancel(request):
                self._cancel(request)
            case Drain(id):
                self._drains.append(id)
                self._is_draining = True
                self._check_drained()
            case Load():
                self._start(order.id, self._load(order.model))
            case Unload():
                self._start(order.id, self._unload(order.model))
            case Suspend():
                self._start(order.id, self._suspend(order.model))
            case Resume():
                self._start(order.id, self._resume(order.model))
            case PlaceExperts(id) | TakeRoutes(id):
                self._report(Done(id, "experts of a model on another engine are its own business"))
            case Stop():
                self._end(0)

    # Models

    def _start(self, id: int, work: Awaitable[dict[str, float]]) -> None:
        """One order about a model; the others go on meanwhile."""

        async def carry_out() -> None:
            try:
                self._report(Done(id, "", await work))
            except (InputError, ExchangeFailed) as error:
                self._report(Done(id, str(error)))

        self._keep(carry_out(), "order")

    async def _load(self, spec: ModelSpec) -> dict[str, float]:
        if spec.engine is None:
            raise InputError(f"model {spec.name!r} runs on our engine; this group is led for others'")
        if spec.name in self._models or spec.name in self._coming:
            raise InputError(f"model {spec.name!r} is on group {self._document.group} already")
        document = self._document
        server = ModelServer(
            Launch(spec, resolved(spec.engine), document.devices, document.tp, document.pp), self._lose
        )
        self._coming.add(spec.name)
        began = time.monotonic()
        try:
            await server.start()
        finally:
            self._coming.discard(spec.name)
        self._models[spec.name] = Held(server)
        return {"start_s": time.monotonic() - began}

    async def _unload(self, model: str) -> dict[str, float]:
        held = self._held(model)
        del self._models[model]
        self._clear(model, held, "unloaded")
        await held.server.stop()
        return {}

    async def _suspend(self, model: str) -> dict[str, float]:
        held = self._held(model)
        began = time.monotonic()
        if not held.is_suspended:
            held.is_suspended = True
            self._clear(model, held, "suspended")
            await held.server.sleep()
        return {"sleep_s": time.monotonic() - began}

    async def _resume(self, model: str) -> dict[str, float]:
        held = self._held(model)
        took_s = await held.server.wake() if held.is_suspended else 0.0
        held.is_suspended = False
        return {"wake_s": took_s}

    def _held(self, model: str) -> Held:
        if model not in self._models:
            raise InputError(f"model {model!r} is not on group {self._document.group}")
        return self._models[model]

    def _clear(self, model: str, held: Held, becomes: str) -> None:
        reason = f"model {model!r} was {becomes} on group {self._document.group}"
        refused: list[Produced | Answered | Refused] = []
        for request, task in list(held.open.items()):
            task.cancel()
            refused.append(Refused(request, "failed", reason))
        if refused:
            self._report(Outputs(model, refused))

    # Requests

    def _submit(self, order: Generate | Infer) -> None:
        code, reason = self._why_not(order)
        if code:
            self._report(Outputs(order.model, [Refused(order.request, code, reason)]))
            return
        held = self._models[order.model]
        if not held.open:
            held.since = time.monotonic()
        held.open[order.request] = self._keep(self._run(held, order), f"request {order.request}")

    async def _run(self, held: Held, order: Generate | Infer) -> None:
        push = self._pusher(held, order.model)
        try:
            if isinstance(order, Generate):
                await held.server.generate(order, push)
            else:
                push(await held.server.infer(order))
        except ExchangeFailed as error:
            # Whether it is dead or deaf, a server that breaks connections is not there.
            self._lose(f"the server of {order.model!r}: {error}")
        except Exception as error:  # an answer that is not what OpenAI's API has
            push(Refused(order.request, "failed", f"the engine's answer is of no use: {error}"))
        finally:
            held.open.pop(order.request, None)
            if not held.open:
                held.busy_s += time.monotonic() - held.since
            self._check_drained()

    def _pusher(self, held: Held, model: str) -> Callable[[Output], None]:
        def push(output: Output) -> None:
            if not held.outputs:
                asyncio.get_running_loop().call_soon(self._tell, held, model)
            held.outputs.append(output)

        return push

    def _tell(self, held: Held, model: str) -> None:
        outputs, held.outputs = held.outputs, []
        busy_s = held.busy_s + (time.monotonic() - held.since if held.open else 0.0)
        self._report(Outputs(model, list(outputs), ModelState(len(held.open), 0, 0, (busy_s,))))

    def _cancel(self, request: str) -> None:
        for held in self._models.values():
            task = held.open.get(request)
            if task is not None:
                task.cancel()

    def _why_not(self, order: Generate | Infer) -> tuple[str, str]:
        group, held = self._document.group, self._models.get(order.model)
        if held is None:
            return "no-replica", f"model {order.model!r} is not on group {group}"
        if held.is_suspended:
            return "no-replica", f"model {order.model!r} is suspended on group {group}"
        if self._is_draining:
            return "draining", f"group {group} takes no more requests"
        if any(order.request in one.open for one in self._models.values()):
            return "invalid", f"request {order.request!r} is open already; ids must differ"
        return "", ""

    def _check_drained(self) -> None:
        if self._drains and not any(held.open for held in self._models.values()):
            for id in self._drains:
                self._report(Done(id))
            self._drains.clear()

    def _keep(self, work: Awaitable[None], name: str) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
