"""The leader's book, as an emulated group keeps it: its models, whose turn it is, the open requests, the drains.

The same rules and the same words as in leader.py, without devices. Knows no time: it is asked for work and told of
results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from placement.errors import InputError
from serving.engine import Generator, PassEngine, Refused
from serving.engine.step import Result
from serving.worker.emulated_engine import EmulatedEngine, Work
from serving.worker.messages import Done, Generate, Infer, ModelState, Outputs, Report


@dataclass
class Held:
    """A model on this group."""

    times: EmulatedEngine
    resume_s: float
    is_suspended: bool = False

    @property
    def engine(self) -> Generator | PassEngine:
        return self.times.engine


class Book:
    """`report` gets what the controller shall hear."""

    def __init__(self, group: str, report: Callable[[Report], None]) -> None:
        self.group = group
        self._report = report
        self._models: dict[str, Held] = {}
        self._turns: deque[str] = deque()
        """Models, the one that has waited longest first."""
        self._requests: dict[str, str] = {}
        """Open requests, and the model of each."""
        self._drains: list[int] = []
        self._is_draining = False

    # Models

    def add(self, model: str, held: Held) -> None:
        self._models[model] = held
        self._turns.append(model)

    def remove(self, model: str) -> None:
        del self._models[model]
        self._turns.remove(model)

    def check_new(self, model: str) -> None:
        if model in self._models:
            raise InputError(f"model {model!r} is on group {self.group} already")

    def held(self, model: str) -> Held:
        if model not in self._models:
            raise InputError(f"model {model!r} is not on group {self.group}")
        return self._models[model]

    def clear(self, model: str, becomes: str) -> Held:
        """Refuse what is open of a model that has no step in flight."""
        held = self.held(model)
        reason = f"model {model!r} was {becomes} on group {self.group}"
        refused = [Refused(request, "failed", reason) for request in held.engine.clear()]
        for one in refused:
            self._requests.pop(one.request, None)
        if refused:
            self._report(Outputs(model, list(refused)))
            self._check_drained()
        return held

    # Requests

    def submit(self, order: Generate | Infer) -> None:
        code, reason = self._why_not(order)
        if not code:
            try:
                self._submit(self._models[order.model].engine, order)
                self._requests[order.request] = order.model
                return
            except InputError as error:
                code, reason = "invalid", str(error)
        self._report(Outputs(order.model, [Refused(order.request, code, reason)]))

    def cancel(self, request: str) -> None:
        model = self._requests.pop(request, None)
        if model is not None:
            self._report(Outputs(model, self._models[model].engine.cancel(request)))
            self._check_drained()

    def drain(self, id: int) -> None:
        self._drains.append(id)
        self._is_draining = True
        self._check_drained()

    # Steps

    def take(self) -> Work | None:
        """Of the models that can run, a step of the one that has waited longest for its turn."""
        for model in self._turns:
            held = self._models[model]
            if held.is_suspended or not held.engine.has_work():
                continue
            work = held.times.take()
            if work is not None:
                self._turns.remove(model)
                self._turns.append(model)
                return work
        return None

    def complete(self, result: Result) -> None:
        engine = self._models[result.model].engine
        outputs = engine.complete(result)
        for output in outputs:
            if engine.is_closed(output.request):
                self._requests.pop(output.request, None)
        if outputs:
            used = engine.scheduler.pool.used if isinstance(engine, Generator) else 0
            self._report(Outputs(result.model, outputs, ModelState(engine.running, engine.waiting, used)))
            self._check_drained()

    # Inside

    def _why_not(self, order: Generate | Infer) -> tuple[str, str]:
        """Code and reason of a refusal; empty when the request is welcome."""
        held = self._models.get(order.model)
        kind = Generator if isinstance(order, Generate) else PassEngine
        if held is None:
            return "no-replica", f"model {order.model!r} is not on group {self.group}"
        if held.is_suspended:
            return "no-replica", f"model {order.model!r} is suspended on group {self.group}"
        if self._is_draining:
            return "draining", f"group {self.group} takes no more requests"
        if order.request in self._requests:
            return "invalid", f"request {order.request!r} is open already; ids must differ"
        if not isinstance(held.engine, kind):
            does = "generates text" if isinstance(held.engine, Generator) else "answers in one pass"
            return "invalid", f"model {order.model!r} {does}; that is not what was asked of it"
        return "", ""

    def _submit(self, engine: Generator | PassEngine, order: Generate | Infer) -> None:
        if isinstance(order, Generate):
            assert isinstance(engine, Generator)
            engine.submit(order.request, order.prompt, order.params)
        else:
            assert isinstance(engine, PassEngine)
            engine.submit(order.request, order.inputs, order.kinds)

    def _check_drained(self) -> None:
        if self._drains and not self._requests:
            for id in self._drains:
                self._report(Done(id))
            self._drains.clear()
