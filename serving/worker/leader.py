"""The leader of a group: takes requests from the controller, steps the engines, commands the other devices.

It computes as well: its own shard is the first device of the first stage. The order of what it sends is the order in
which every device works, so that nothing else needs to be agreed upon.
"""

from __future__ import annotations

import os
import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import msgspec

from placement.errors import InputError
from serving.engine import Generator, PassEngine, Refused, make_generator
from serving.engine.blocks import BLOCK_TOKENS
from serving.engine.scheduler import Limits
from serving.engine.step import Result, Step, decode_array
from serving.models import ModelConfig, read_config, stage_boundaries
from serving.parallel import connect as connect_parallel
from serving.worker.device_runner import DeviceRunner, cache_block_bytes, check_precision
from serving.worker.document import WorkerDocument
from serving.worker.front import FromController, FromMember, Front
from serving.worker.member import encode
from serving.worker.messages import (
    Cancel,
    Command,
    Done,
    Drain,
    Generate,
    Hello,
    Infer,
    Joined,
    Leave,
    Load,
    LoadShard,
    ModelSpec,
    ModelState,
    Order,
    Outputs,
    Resume,
    RunStep,
    StepResult,
    Stop,
    Suspend,
    Unload,
)

Changing = TypeVar("Changing", Load, Unload, Suspend, Resume)

_decoder: msgspec.msgpack.Decoder[Result] = msgspec.msgpack.Decoder(Result, dec_hook=decode_array)


@dataclass
class _Held:
    """A model on this group."""

    engine: Generator | PassEngine
    blocks: int
    is_suspended: bool = False


@dataclass
class _Pending:
    """An order that other devices still work on; `conclude` is called with the first error, or none."""

    missing: int
    conclude: Callable[[str], None]
    error: str = ""


def run_leader(document: WorkerDocument) -> None:
    """Until the controller says Stop, or is gone."""
    front = Front(document)
    parallel = connect_parallel(document.layout, document.rendezvous, document.backend, document.connect_s)

    def give_up(reason: str) -> None:
        front.say_ended(reason)
        parallel.abort(reason)

    front.mail.on_lost = give_up
    leader = Leader(document, front, DeviceRunner(document, parallel))
    try:
        leader.gather()
        leader.run()
    except Exception as error:  # the process boundary
        front.fail(f"the leader of {document.group} cannot go on: {type(error).__name__}: {error}")
        raise
    finally:
        front.mail.end()
        parallel.close()


class Leader:
    """The main thread's work."""

    def __init__(self, document: WorkerDocument, front: Front, device: DeviceRunner) -> None:
        self._document, self._front, self._device = document, front, device
        self._models: dict[str, _Held] = {}
        self._turns: deque[str] = deque()
        """Models, the one that has waited longest first."""
        self._requests: dict[str, str] = {}
        """Open requests, and the model of each."""
        self._pending: dict[int, _Pending] = {}
        self._drains: list[int] = []
        self._is_draining = False
        self._in_flight = 0
        self._is_stopping = False

    def gather(self) -> None:
        """Wait until every other device has joined; the front sees to it that this ends."""
        pids = {0: os.getpid()}
        while len(pids) < self._document.layout.devices:
            item = self._front.mail.inbox.get()
            if isinstance(item, FromMember) and isinstance(item.message, Joined):
                pids[item.rank] = item.message.pid
            else:
                self._front.mail.inbox.put(item)
        layout = self._document.layout
        in_order = [pids[rank] for rank in sorted(pids)]
        self._front.open(Hello(self._document.group, layout.tp, layout.pp, in_order, self._document.kind))

    def run(self) -> None:
        step: Step | None = None
        while not self._is_stopping:
            # Where nothing could run, only a message (a request, a step's result) can change that.
            self._take_mail(wait=step is None)
            step = self._next_step()
            if step is not None:
                self._run(step)

    # Mail

    def _take_mail(self, wait: bool) -> None:
        """Everything that has come; with `wait`, at least one message."""
        inbox = self._front.mail.inbox
        try:
            self._handle(inbox.get(block=wait))
            while True:
                self._handle(inbox.get_nowait())
        except queue.Empty:
            pass

    def _handle(self, item: FromController | FromMember) -> None:
        if isinstance(item, FromController):
            self._obey(item.message)
            return
        match item.message:
            case StepResult(result):
                self._complete(_decoder.decode(result))
            case Done(id, error):
                self._tick_off(id, error)
            case _:
                pass

    def _obey(self, order: Order) -> None:
        match order:
            case Generate(request, model, prompt, params):
                self._submit(request, model, lambda engine: engine.submit(request, prompt, params), Generator)
            case Infer(request, model, inputs, kinds):
                self._submit(request, model, lambda engine: engine.submit(request, inputs, kinds), PassEngine)
            case Cancel(request):
                self._cancel(request)
            case Load():
                self._try(self._load, order)
            case Unload():
                self._try(self._unload, order)
            case Suspend():
                self._try(self._suspend, order)
            case Resume():
                self._try(self._resume, order)
            case Drain(id):
                self._drains.append(id)
                self._is_draining = True
                self._check_drained()
            case Stop():
                self._is_stopping = True
                self._command(Leave())

    def _try(self, work: Callable[[Changing], None], order: Changing) -> None:
        try:
            work(order)
        except InputError as error:
            self._front.report(Done(order.id, str(error)))

    # Requests

    def _submit(self, request: str, model: str, submit: Callable[..., None], kind: type) -> None:
        held = self._models.get(model)
        code, reason = "", ""
        if held is None:
            code, reason = "no-replica", f"model {model!r} is not on group {self._document.group}"
        elif held.is_suspended:
            code, reason = "no-replica", f"model {model!r} is suspended on group {self._document.group}"
        elif self._is_draining:
            code, reason = "draining", f"group {self._document.group} takes no more requests"
        elif request in self._requests:
            code, reason = "invalid", f"request {request!r} is open already; ids must differ"
        elif not isinstance(held.engine, kind):
            does = "generates text" if isinstance(held.engine, Generator) else "answers in one pass"
            code, reason = "invalid", f"model {model!r} {does}; that is not what was asked of it"
        else:
            try:
                submit(held.engine)
                self._requests[request] = model
                return
            except InputError as error:
                code, reason = "invalid", str(error)
        self._front.report(Outputs(model, [Refused(request, code, reason)]))

    def _cancel(self, request: str) -> None:
        model = self._requests.pop(request, None)
        if model is not None:
            self._front.report(Outputs(model, self._models[model].engine.cancel(request)))
            self._check_drained()

    def _check_drained(self) -> None:
        if self._drains and not self._requests:
            for id in self._drains:
                self._front.report(Done(id))
            self._drains.clear()

    # Steps

    def _is_ready(self, held: _Held) -> bool:
        return not held.is_suspended and held.engine.has_work()

    def _next_step(self) -> Step | None:
        """Of the models that can run, the one that has waited longest for its turn."""
        for model in list(self._turns):
            held = self._models[model]
            if self._is_ready(held) and (step := held.engine.begin()) is not None:
                self._turns.remove(model)
                self._turns.append(model)
                return step
        return None

    def _run(self, step: Step) -> None:
        self._in_flight += 1
        if self._document.layout.devices > 1:
            self._command(RunStep(encode(step)))
        result = self._device.run(step).result
        if result is not None:
            self._complete(result)

    def _complete(self, result: Result) -> None:
        self._in_flight -= 1
        engine = self._models[result.model].engine
        outputs = engine.complete(result)
        for output in outputs:
            if engine.is_closed(output.request):
                self._requests.pop(output.request, None)
        if outputs:
            self._front.report(Outputs(result.model, outputs, self._state(engine)))
            self._check_drained()

    def _state(self, engine: Generator | PassEngine) -> ModelState:
        used = engine.scheduler.pool.used if isinstance(engine, Generator) else 0
        return ModelState(engine.running, engine.waiting, used)

    # Models

    def _load(self, order: Load) -> None:
        id, spec = order.id, order.model
        if spec.name in self._models:
            raise InputError(f"model {spec.name!r} is on group {self._document.group} already")
        config = read_config(Path(spec.path))
        blocks = self._blocks(config, spec)
        self._command(LoadShard(id, spec, blocks))
        engine = self._engine(config, spec, blocks)

        def conclude(error: str) -> None:
            if error:
                self._device.unload(spec.name)
                self._command(Unload(-1, spec.name))
            else:
                self._models[spec.name] = _Held(engine, blocks)
                self._turns.append(spec.name)
            self._front.report(Done(id, error, {"blocks": blocks, "block_tokens": BLOCK_TOKENS}))

        self._start(id, conclude, lambda: self._device.load(spec, blocks))

    def _blocks(self, config: ModelConfig, spec: ModelSpec) -> int:
        """Cache blocks that fit on the device with the most layers; an InputError when they hold not even one."""
        check_precision(spec.precision)
        if config.task != "generate":
            return 0
        layout = self._document.layout
        reason = config.sizes.why_not(layout.tp, layout.pp)
        if reason is not None:
            raise InputError(f"{spec.path}: shape ({layout.tp}, {layout.pp}): {reason}")
        cuts = stage_boundaries(config.sizes, layout.tp, layout.pp)
        layers = max(stop - start for start, stop in pairwise(cuts))
        value_bytes = 4 if self._document.torch_device == "cpu" else 2
        each = cache_block_bytes(config, layout.tp, layers, value_bytes, BLOCK_TOKENS)
        blocks = spec.kv_bytes // each
        if blocks < 1:
            raise InputError(f"model {spec.name!r}: kv_bytes is {spec.kv_bytes}; a block of its cache takes {each}")
        return blocks

    def _engine(self, config: ModelConfig, spec: ModelSpec, blocks: int) -> Generator | PassEngine:
        sizes, lanes = config.sizes, self._document.layout.pp
        limits = Limits(spec.step_tokens, spec.max_sequences)
        if config.task != "generate":
            width = len(config.labels) or sizes.hidden
            return PassEngine(spec.name, sizes.vocabulary, config.max_positions, width, lanes, limits)
        return make_generator(
            spec.name,
            vocabulary=sizes.vocabulary,
            max_positions=config.max_positions,
            eos_token_ids=config.eos_token_ids,
            blocks=blocks,
            lanes=lanes,
            limits=limits,
        )

    def _unload(self, order: Unload) -> None:
        id, model = order.id, order.model
        self._quiet(model, "unloaded")
        del self._models[model]
        self._turns.remove(model)
        self._command(order)
        self._start(id, lambda error: self._front.report(Done(id, error)), lambda: self._device.unload(model))

    def _suspend(self, order: Suspend) -> None:
        id, model = order.id, order.model
        held = self._quiet(model, "suspended")
        held.is_suspended = True
        if isinstance(held.engine, Generator):
            held.engine.forget_cache()
        self._command(order)
        self._start(id, lambda error: self._front.report(Done(id, error)), lambda: self._device.suspend(model))

    def _resume(self, order: Resume) -> None:
        id, model = order.id, order.model
        held = self._held(model)
        self._command(order)

        def conclude(error: str) -> None:
            held.is_suspended = held.is_suspended and bool(error)
            self._front.report(Done(id, error))

        self._start(id, conclude, lambda: self._device.resume(model))

    def _held(self, model: str) -> _Held:
        if model not in self._models:
            raise InputError(f"model {model!r} is not on group {self._document.group}")
        return self._models[model]

    def _quiet(self, model: str, becomes: str) -> _Held:
        """Let no step of the model be in flight and no request of it be open."""
        held = self._held(model)
        while self._in_flight:
            self._handle(self._front.mail.inbox.get())
        reason = f"model {model!r} was {becomes} on group {self._document.group}"
        refused = [Refused(request, "failed", reason) for request in held.engine.clear()]
        for one in refused:
            self._requests.pop(one.request, None)
        if refused:
            self._front.report(Outputs(model, list(refused)))
            self._check_drained()
        return held

    # The other devices

    def _command(self, command: Command) -> None:
        self._front.command(command)

    def _start(self, id: int, conclude: Callable[[str], None], own: Callable[[], None]) -> None:
        """Do this device's part of what the others were told; conclude when all have done theirs."""
        error = ""
        try:
            own()
        except InputError as found:
            error = str(found)
        self._pending[id] = _Pending(self._document.layout.devices, conclude)
        self._tick_off(id, error)

    def _tick_off(self, id: int, error: str) -> None:
        pending = self._pending.get(id)
        if pending is None:
            return
        pending.missing -= 1
        pending.error = pending.error or error
        if pending.missing == 0:
            del self._pending[id]
            pending.conclude(pending.error)
