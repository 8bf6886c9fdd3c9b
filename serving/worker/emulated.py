"""An emulated group: speaks as the leader of a group of real workers does, and answers from a profile, in wall time.

Real are the messages, the links and the engines (batches, cache blocks, prefixes, lanes); instead of running a step it
lets the step's time pass. It needs no processes and no torch: thousands of them live on one event loop, so that large
clusters run on a laptop. It says that it is emulated wherever it shows.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from placement.errors import InputError
from placement.profile import Shape
from serving.engine import Generator
from serving.engine.blocks import BLOCK_TOKENS
from serving.worker.book import Book, Held
from serving.worker.control import Control
from serving.worker.document import WorkerDocument
from serving.worker.emulated_clocks import EARLY_S, Alarms, StageClocks
from serving.worker.emulated_engine import Work, make_engine
from serving.worker.emulated_model import EmulatedModel
from serving.worker.launcher import Exit
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
    Order,
    PlaceExperts,
    Report,
    Resume,
    Stop,
    Suspend,
    TakeRoutes,
    Unload,
)

FIRST_PID = 2**30
"""No process has such a number: a signal to an emulated worker reaches nobody."""
CATCH_UP_S = 0.05
"""A loop that is late starts steps when they were due, but not by more than this in the past."""

FindModel = Callable[[str], EmulatedModel]
"""From a ModelSpec's path."""

_log = logging.getLogger(__name__)


class EmulatedGroup:
    """All devices of one group; `document` is its first device's. Made on the loop it lives on."""

    def __init__(
        self, document: WorkerDocument, find_model: FindModel, kind: str | None = None, span: str = "node"
    ) -> None:
        self.name = document.group
        self._document, self._find_model = document, find_model
        self._kind, self._span = kind, span
        self._control = Control(document, self._open, self._obey, self._lose_controller, least_life_s=0.0)
        self._report = self._control.report
        self._clocks = StageClocks(document.pp)
        self._alarms = Alarms(self._fail)
        self._book: Book[Work] = Book(document.group, document.pp, self._report)
        self._resume_s: dict[str, float] = {}
        self._changes: deque[Unload | Suspend | Resume] = deque()
        """Orders about models that are there, carried out one after the other; no step begins before they are."""
        self._loader_free = 0.0
        """When all models that are being read have been; steps go on meanwhile."""
        self._in_flight = 0
        self._has_come = False
        """Whether orders were read since a step was last looked for."""
        self._now = 0.0
        """When what is being done is due: the loop may be late."""
        self._pids: dict[int, int] = {}
        loop = asyncio.get_running_loop()
        self._exits: list[asyncio.Future[Exit]] = [loop.create_future() for _ in range(document.layout.devices)]

    @property
    def worst_lag_s(self) -> float:
        """How late its loop was at worst: what its times are off by."""
        return self._alarms.worst_lag_s

    @property
    def is_over(self) -> bool:
        return self._exits[0].done()

    async def listen(self) -> None:
        """Wait for the controller at the document's address."""
        await self._control.listen()
        _log.info("emulated group %s listens at %s", self.name, self._document.control)

    def join(self, rank: int, pid: int) -> None:
        """A device is there; when all are, the controller is greeted."""
        self._pids[rank] = pid
        self._greet()

    async def wait(self, rank: int) -> Exit:
        return await asyncio.shield(self._exits[rank])

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """End one device as a signal would: without its leader the group falls silent, without another it says so."""
        if self.is_over:
            return
        self._exits[rank].set_result(self._exit(rank, None, number))
        if rank == 0:
            if self._control.link is not None:
                _drop(self._control.link)
            self._end(code=1, why="the leader is gone")
        else:
            self._lose(f"group {self.name} (emulated): rank {rank} is gone: {signal.Signals(number).name}")

    # Links

    def _open(self) -> None:
        self._greet()
        self._control.wait_no_more()  # one descriptor less for each of thousands

    def _lose_controller(self, reason: str) -> None:
        self._end(code=1, why=f"the controller is gone: {reason}")

    def _greet(self) -> None:
        document = self._document
        if self._control.link is not None and len(self._pids) == document.layout.devices:
            pids = [self._pids[rank] for rank in sorted(self._pids)]
            self._report(Hello(self.name, document.tp, document.pp, pids, "emulated"))

    # Orders

    def _obey(self, order: Order) -> None:
        match order:
            case Generate() | Infer():
                self._book.submit(order)
            case Cancel(request):
                self._book.cancel(request)
            case Drain(id):
                self._book.drain(id)
            case Echo(id):
                self._report(Done(id))
            case Load():
                self._load(order)
            case Unload() | Suspend() | Resume():
                self._changes.append(order)
                self._change()
            case PlaceExperts(id) | TakeRoutes(id):
                self._report(Done(id, "an emulated group has no experts"))
            case Stop():
                self._end(code=0, why="it was told to stop")
        if not self._has_come:
            self._has_come = True
            asyncio.get_running_loop().call_soon(self._begin, time.monotonic())

    def _begin(self, due: float) -> None:
        """All that came together has been read, so that a batch is one."""
        self._has_come = False
        self._pump(due)

    def _change(self) -> None:
        """Carry out orders about models; a model that goes lets the steps in flight end first."""
        while self._changes:
            order = self._changes[0]
            if self._in_flight and isinstance(order, Unload | Suspend):
                return
            self._changes.popleft()
            try:
                done, seconds = self._carry_out(order)
            except InputError as error:
                self._report(Done(order.id, str(error)))
                continue
            if seconds == 0:
                self._report(done)
                continue
            end = self._clocks.occupy(time.monotonic(), seconds)
            self._alarms.at(end, partial(self._answer, done))
            self._alarms.at(self._clocks.free[0], self._pump)

    def _answer(self, done: Done, due: float) -> None:
        self._report(done)

    def _carry_out(self, order: Unload | Suspend | Resume) -> tuple[Done, float]:
        """The answer, and how long it takes."""
        match order:
            case Unload(id, model):
                self._book.clear(model, "unloaded")
                self._book.remove(model)
                return Done(id), 0.0
            case Suspend(id, model):
                held = self._book.clear(model, "suspended")
                held.is_suspended = True
                if isinstance(held.engine, Generator):
                    held.engine.forget_cache()
                return Done(id), self._resume_s[model]
            case Resume(id, model):
                held = self._book.held(model)
                was_suspended, held.is_suspended = held.is_suspended, False
                return Done(id), self._resume_s[model] if was_suspended else 0.0

    def _load(self, order: Load) -> None:
        spec, document = order.model, self._document
        try:
            model = self._find_model(spec.path)
            try:
                entry = model.costs(Shape(document.tp, document.pp), self._kind, self._span)
                times = make_engine(model, entry, spec, lambda: self._now)
            except InputError as error:
                raise InputError(f"emulated model {spec.name!r}: {error}") from error
            self._book.expect(spec.name)
        except InputError as error:
            self._report(Done(order.id, str(error)))
            return
        self._resume_s[spec.name] = model.resume_s
        self._loader_free = max(time.monotonic(), self._loader_free) + model.load_s
        loaded = partial(self._end_load, order, Held(times.engine, times.take))
        self._alarms.at(self._loader_free, loaded) if model.load_s else loaded(0.0)

    def _end_load(self, order: Load, held: Held[Work], due: float) -> None:
        self._book.add(order.model.name, held)
        blocks = held.engine.scheduler.pool.blocks if isinstance(held.engine, Generator) else 0
        self._report(Done(order.id, "", {"blocks": blocks, "block_tokens": BLOCK_TOKENS, "emulated": True}))

    # Steps

    def _pump(self, due: float) -> None:
        """Begin a step if the first stage is free and something can run, which was so from `due` on.

        Whoever occupies the first stage sees to it that this is called when it is free again.
        """
        now = time.monotonic()
        if self.is_over or self._changes or self._clocks.free[0] > now + EARLY_S:
            return
        start = self._now = max(due, now - CATCH_UP_S)
        work = self._book.take()
        if work is None:
            return
        for stage_s in work.stage_s:
            taken_s = [seconds * self._document.pace for seconds in stage_s]
            end = self._clocks.enter(start, taken_s)
            for stage, seconds in enumerate(taken_s):
                self._book.count_busy(work.result.model, stage, seconds)
        self._in_flight += 1
        self._alarms.at(end, partial(self._complete, work))
        if self._document.pp > 1:
            self._alarms.at(self._clocks.free[0], self._pump)

    def _complete(self, work: Work, due: float) -> None:
        self._in_flight -= 1
        self._now = due
        self._book.complete(work.result)
        if self._changes and not self._in_flight:
            self._change()
        self._pump(due)

    # The end

    def _fail(self, error: Exception) -> None:
        _log.error("emulated group %s cannot go on", self.name, exc_info=error)
        self._lose(f"the leader of {self.name} (emulated) cannot go on: {type(error).__name__}: {error}")

    def _lose(self, reason: str) -> None:
        """The controller is told why, and all is over."""
        self._report(Ended(reason))
        self._end(code=1, why=reason)

    def _end(self, code: int, why: str) -> None:
        self._alarms.turn_off()
        self._control.close(why)
        for rank, ended in enumerate(self._exits):
            if not ended.done():
                ended.set_result(self._exit(rank, code, None, why))

    def _exit(self, rank: int, code: int | None, number: int | None, why: str = "") -> Exit:
        return Exit(name=f"{self.name}/{rank}", code=code, signal=number, lines=(f"emulated: {why}",) if why else ())


def _drop(link: Link[Report, Order]) -> None:
    """As when a process dies: the socket is gone, and nothing was said."""
    link._end("killed", at_once=True)
