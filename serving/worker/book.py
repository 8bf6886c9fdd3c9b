"""A group's book, as its leader keeps it: the models, whose turn it is, the open requests, the drains.

Knows neither devices nor time: it is asked for work and told of results. Real and emulated leaders keep the same book.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from placement.errors import InputError
from serving.engine import Generator, PassEngine, Refused
from serving.engine.outputs import Output
from serving.engine.step import Result
from serving.worker.messages import Done, Generate, Infer, ModelState, Outputs, Report

W = TypeVar("W")


@dataclass
class Held(Generic[W]):
    """A model on this group; `begin` takes its next step, to be run at once, if there is one."""

    engine: Generator | PassEngine
    begin: Callable[[], W | None]
    is_suspended: bool = False
    busy_s: list[float] = field(default_factory=list)
    """How long each stage has computed for it."""
    told_open: int = 0
    """Sequences it had when the controller last heard of it."""


class Book(Generic[W]):
    """`report` gets what the controller shall hear."""

    def __init__(self, group: str, stages: int, report: Callable[[Report], None]) -> None:
        self.group = group
        self._stages, self._report = stages, report
        self._models: dict[str, Held[W]] = {}
        self._coming: set[str] = set()
        self._turns: deque[str] = deque()
        """Models, the one that has waited longest first."""
        self._requests: dict[str, str] = {}
        """Open requests, and the model of each."""
        self._drains: list[int] = []
        self._is_draining = False

    @property
    def is_idle(self) -> bool:
        """Nothing is asked of it."""
        return not self._requests

    # Models

    def expect(self, model: str) -> None:
        """A model is about to be read; until `add` or `give_up` nothing else may take its name."""
        if model in self._models or model in self._coming:
            raise InputError(f"model {model!r} is on group {self.group} already")
        self._coming.add(model)

    def add(self, model: str, held: Held[W]) -> None:
        self._coming.remove(model)
        held.busy_s = [0.0] * self._stages
        self._models[model] = held
        self._turns.append(model)

    def give_up(self, model: str) -> None:
        self._coming.remove(model)

    def remove(self, model: str) -> None:
        del self._models[model]
        self._turns.remove(model)

    def held(self, model: str) -> Held[W]:
        if model not in self._models:
            raise InputError(f"model {model!r} is not on group {self.group}")
        return self._models[model]

    def clear(self, model: str, becomes: str) -> Held[W]:
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
            self._tell(model, self._models[model].engine.cancel(request))
            self._check_drained()

    def drain(self, id: int) -> None:
        self._drains.append(id)
        self._is_draining = True
        self._check_drained()

    # Steps

    def take(self) -> W | None:
        """Of the models that can run, a step of the one that has waited longest for its turn; if that answers in one
        pass, of the one-pass model whose request came first: the router has reckoned with that order."""
        can_run = [model for model in self._turns if self._can_run(self._models[model])]
        one_pass = [model for model in can_run if isinstance(self._models[model].engine, PassEngine)]
        first = min(one_pass, key=self._waits_since, default="")
        for model in can_run:
            chosen = first if model in one_pass else model
            work = self._models[chosen].begin()
            if work is not None:
                self._turns.remove(chosen)
                self._turns.append(chosen)
                return work
        return None

    def _can_run(self, held: Held[W]) -> bool:
        return not held.is_suspended and held.engine.has_work()

    def _waits_since(self, model: str) -> float:
        engine = self._models[model].engine
        assert isinstance(engine, PassEngine)
        return engine.waits_since

    def count_busy(self, model: str, stage: int, seconds: float) -> None:
        """A stage in the middle may be heard last, when the model is gone."""
        if model in self._models:
            self._models[model].busy_s[stage] += seconds

    def complete(self, result: Result) -> None:
        held = self._models[result.model]
        engine = held.engine
        outputs = engine.complete(result)
        for output in outputs:
            if engine.is_closed(output.request):
                self._requests.pop(output.request, None)
        # What was cancelled in the middle of a step says nothing more, but is gone from the cache only now.
        if outputs or engine.running + engine.waiting < held.told_open:
            self._tell(result.model, outputs)
            self._check_drained()

    # Inside

    def _tell(self, model: str, outputs: list[Output]) -> None:
        """With how the model stands after it."""
        held = self._models[model]
        engine = held.engine
        held.told_open = engine.running + engine.waiting
        used = engine.scheduler.pool.used if isinstance(engine, Generator) else 0
        state = ModelState(engine.running, engine.waiting, used, tuple(held.busy_s))
        self._report(Outputs(model, outputs, state))

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
