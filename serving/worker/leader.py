"""The leader of a group: takes requests from the controller, steps the engines, commands the other devices.

It computes as well: its own shard is the first device of the first stage. The order of what it sends is the order in
which every device works, so that nothing else needs to be agreed upon.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from placement.errors import InputError
from serving.engine import Generator, PassEngine, TokenGoal, make_generator
from serving.engine.blocks import BLOCK_TOKENS
from serving.engine.scheduler import Limits
from serving.engine.step import Result, Step, decode_array
from serving.models import ModelConfig, read_config, stage_boundaries
from serving.parallel import connect as connect_parallel
from serving.worker.book import Book, Held
from serving.worker.device_runner import DeviceRunner, cache_block_bytes, check_precision
from serving.worker.document import WorkerDocument
from serving.worker.front import FromController, FromMember, Front
from serving.worker.loader import MOVER_NICE, Loader
from serving.worker.member import encode
from serving.worker.messages import (
    Cancel,
    Command,
    Done,
    Drain,
    Echo,
    Generate,
    Hello,
    Infer,
    Joined,
    Leave,
    Load,
    LoadShard,
    ModelSpec,
    Order,
    PlaceExperts,
    Report,
    Resume,
    RunStep,
    StageDone,
    Stop,
    Suspend,
    SwitchExperts,
    TakeRoutes,
    Unload,
)

Changing = TypeVar("Changing", Load, Unload, Suspend, Resume, PlaceExperts, TakeRoutes)

_decoder: msgspec.msgpack.Decoder[Result] = msgspec.msgpack.Decoder(Result, dec_hook=decode_array)


@dataclass
class _Pending:
    """An order that other devices still work on; `conclude` is called with the first error, or none."""

    missing: int
    conclude: Callable[[str], None]
    error: str = ""
    facts: list[dict[str, Any]] = field(default_factory=list)
    """What the devices said beside."""


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
        front.fail(_last_words(document, error))
        raise
    finally:
        front.mail.end()
        parallel.close()


def _last_words(document: WorkerDocument, error: Exception) -> str:
    return f"the leader of {document.group} cannot go on: {type(error).__name__}: {error}"


def _goal(spec: ModelSpec, stages: int) -> TokenGoal | None:
    if spec.tpot_s is None:
        return None
    if len(spec.step_costs) != stages:
        raise InputError(
            f"model {spec.name!r}: tpot_s needs step_costs of {stages} stages, {len(spec.step_costs)} given"
        )
    return TokenGoal(spec.tpot_s, spec.step_costs)


def differing_experts(facts: list[dict[str, Any]]) -> str:
    """What is wrong where devices have read the same expert differently; nothing where all agree."""
    seen: dict[tuple[int, int], int] = {}
    for device in facts:
        for layer, expert, digest in device.get("digests", ()):
            if seen.setdefault((layer, expert), digest) != digest:
                return f"layer {layer}: expert {expert} is not the same on all devices; its places stay as they were"
    return ""


class Leader:
    """The main thread's work."""

    def __init__(self, document: WorkerDocument, front: Front, device: DeviceRunner) -> None:
        self._document, self._front, self._device = document, front, device
        self._book: Book[Step] = Book(document.group, document.layout.pp, self._report)
        self._loader = Loader(lambda error: front.fail(_last_words(document, error)))
        self._mover = Loader(lambda error: front.fail(_last_words(document, error)), MOVER_NICE)
        self._pending: dict[int, _Pending] = {}
        self._placing: set[str] = set()
        """Models whose experts are being brought to other places."""
        self._in_flight = 0
        self._is_stopping = False
        self._hands = threading.Lock()
        """Whoever holds it works on the book: the main thread, but while its device computes."""
        front.on_stage = self._end_stage_early

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
        with self._hands:
            while not self._is_stopping:
                # Where nothing could run, only a message (a request, a step's result) can change that.
                self._take_mail(wait=step is None)
                step = self._book.take()
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
            case StageDone():
                self._end_stage(item.message)
            case Done(id, error, facts):
                self._tick_off(id, error, facts)
            case _:
                pass

    def _obey(self, order: Order) -> None:
        match order:
            case Generate() | Infer():
                self._book.submit(order)
            case Cancel(request):
                self._book.cancel(request)
            case Load():
                self._try(self._load, order)
            case Unload():
                self._try(self._unload, order)
            case Suspend():
                self._try(self._suspend, order)
            case Resume():
                self._try(self._resume, order)
            case PlaceExperts():
                self._try(self._place_experts, order)
            case TakeRoutes():
                self._try(self._take_routes, order)
            case Drain(id):
                self._book.drain(id)
            case Echo(id):
                self._command(order)
                self._start(id, lambda error: self._report(Done(id, error)), lambda: None)
            case Stop():
                self._is_stopping = True
                self._command(Leave())

    def _try(self, work: Callable[[Changing], None], order: Changing) -> None:
        try:
            work(order)
        except InputError as error:
            self._front.report(Done(order.id, str(error)))

    # Steps

    def _report(self, message: Report) -> None:
        """Where more is to be done, the mail's thread writes, and reads what has come meanwhile."""
        self._front.report(message, at_once=self._book.is_idle)

    def _run(self, step: Step) -> None:
        self._in_flight += 1
        if self._document.layout.devices > 1:
            self._command(RunStep(encode(step)))
        self._hands.release()
        try:
            worked = self._device.run(step)
        finally:
            self._hands.acquire()
        self._book.count_busy(step.model, 0, worked.seconds)
        if worked.result is not None:
            self._complete(worked.result)

    def _end_stage_early(self, done: StageDone) -> bool:
        """On the mail's thread: what the last stage has made is told at once, not only when this stage, which computes
        the next step by now, is done. False where it must wait for its turn."""
        if not self._front.mail.inbox.empty() or not self._hands.acquire(blocking=False):
            return False
        try:
            self._end_stage(done)
        finally:
            self._hands.release()
        return True

    def _end_stage(self, done: StageDone) -> None:
        self._book.count_busy(done.model, done.stage, done.busy_s)
        if done.result:
            self._complete(_decoder.decode(done.result))

    def _complete(self, result: Result) -> None:
        self._in_flight -= 1
        self._book.complete(result)

    # Models

    def _load(self, order: Load) -> None:
        """Read by every device beside its steps; the first step of the model comes after the last device has it."""
        id, spec = order.id, order.model
        if spec.engine is not None:
            raise InputError(f"model {spec.name!r} runs on another engine; this group is one of our workers")
        config = read_config(Path(spec.path))
        blocks = self._blocks(config, spec)
        engine = self._engine(config, spec, blocks)
        self._book.expect(spec.name)
        self._command(LoadShard(id, spec, blocks))

        def conclude(error: str) -> None:
            if error:
                self._book.give_up(spec.name)
                self._device.unload(spec.name)
                self._command(Unload(-1, spec.name))
            else:
                self._book.add(spec.name, Held(engine, engine.begin))
            facts = {"blocks": blocks, "block_tokens": BLOCK_TOKENS, "graphs": self._device.graph_sizes(spec.name)}
            self._front.report(Done(id, error, facts))

        self._expect(id, conclude)
        own = self._front.mail.inbox
        self._loader.submit(
            lambda: self._device.load(spec, blocks), lambda error: own.put(FromMember(0, Done(id, error)))
        )

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
            goal=_goal(spec, lanes),
        )

    def _unload(self, order: Unload) -> None:
        id, model = order.id, order.model
        self._quiet(model, "unloaded")
        self._book.remove(model)
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
        held = self._book.held(model)
        self._command(order)

        def conclude(error: str) -> None:
            held.is_suspended = held.is_suspended and bool(error)
            self._front.report(Done(id, error))

        self._start(id, conclude, lambda: self._device.resume(model))

    def _place_experts(self, order: PlaceExperts) -> None:
        """Every device reads what it lacks beside its steps. What the leader says then stands at the same place among
        the steps of all devices, so that each step uses one placement everywhere."""
        id, model = order.id, order.model
        self._book.held(model)
        if model in self._placing:
            raise InputError(f"model {model!r}: its experts are on their way to other places already")
        self._placing.add(model)
        self._command(order)
        facts: dict[str, Any] = {}

        def conclude(error: str) -> None:
            self._placing.remove(model)
            error = error or differing_experts(pending.facts)
            self._command(SwitchExperts(model, not error))
            self._device.switch_experts(model, not error)
            read = sum(int(one["read"]) for one in pending.facts if one)
            self._front.report(Done(id, error, {"read": read}))

        pending = self._expect(id, conclude)
        own = self._front.mail.inbox
        self._mover.submit(
            lambda: facts.update(self._device.prepare_experts(model, order.experts)),
            lambda error: own.put(FromMember(0, Done(id, error, facts))),
        )

    def _take_routes(self, order: TakeRoutes) -> None:
        id, model = order.id, order.model
        self._book.held(model)
        self._command(order)

        def conclude(error: str) -> None:
            facts: dict[str, Any] = {}
            for name in ("counts", "steps"):
                by_layer = {layer: each for one in pending.facts for layer, each in one.get(name, ())}
                facts[name] = [by_layer[layer] for layer in sorted(by_layer)]
            self._front.report(Done(id, error, facts))

        pending = self._expect(id, conclude)
        self._tick_off(id, "", self._device.take_routes(model))

    def _quiet(self, model: str, becomes: str) -> Held[Step]:
        """Let no step of the model be in flight and no request of it be open."""
        self._book.held(model)
        while self._in_flight:
            self._handle(self._front.mail.inbox.get())
        return self._book.clear(model, becomes)

    # The other devices

    def _command(self, command: Command) -> None:
        self._front.command(command)

    def _start(self, id: int, conclude: Callable[[str], None], own: Callable[[], None]) -> None:
        """Do this device's part of what the others were told; conclude when all have done theirs."""
        self._expect(id, conclude)
        own()
        self._tick_off(id, "")

    def _expect(self, id: int, conclude: Callable[[str], None]) -> _Pending:
        self._pending[id] = _Pending(self._document.layout.devices, conclude)
        return self._pending[id]

    def _tick_off(self, id: int, error: str, facts: dict[str, Any] | None = None) -> None:
        pending = self._pending.get(id)
        if pending is None:
            return
        pending.missing -= 1
        pending.error = pending.error or error
        pending.facts.append(facts or {})
        if pending.missing == 0:
            del self._pending[id]
            pending.conclude(pending.error)
