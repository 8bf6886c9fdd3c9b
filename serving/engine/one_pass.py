"""The requests of one model that answers in one pass: their inputs are batched, and answered when all are done."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.errors import InputError
from serving.engine.outputs import Answered, Output, Refused
from serving.engine.scheduler import Limits
from serving.engine.step import PassResult, PassStep, Result, build_pass_step

ROOM = 4
"""Batches for each stage that may be under way: where stages take unlike times, some wait between them, and what waits
before the first would lose the time it is free. The planner reckons with room without bound."""
MAX_ANSWER_BYTES = 8 * 2**20
"""One message must hold a request's answer, beside the others of its last step."""


@dataclass
class Input:
    request: str
    tokens: list[int]
    kinds: list[int]
    since: float


class TakenInputs(NamedTuple):
    """A step that has begun, by its number."""

    number: int
    inputs: list[Input]


@dataclass
class PassEngine:
    """Engine of a one-pass model: inputs of whole requests are run together, first come first served."""

    model: str
    vocabulary: int
    max_positions: int
    width: int
    """Numbers in an answer's row."""
    stages: int = 1
    limits: Limits = field(default_factory=Limits)
    now: Callable[[], float] = time.monotonic
    _waiting: deque[Input] = field(default_factory=deque)
    _missing: dict[str, int] = field(default_factory=dict)
    _rows: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    _flying: dict[int, list[Input]] = field(default_factory=dict)
    _steps: int = 0

    def submit(self, request: str, inputs: list[list[int]], kinds: list[list[int]] | None = None) -> None:
        """kinds: for each input's tokens 1 where they belong to a second sentence."""
        if request in self._missing:
            raise InputError(f"request {request!r} is open already; ids must differ")
        if not inputs:
            raise InputError("input: nothing given; at least one text is needed")
        most = max(MAX_ANSWER_BYTES // (4 * self.width), 1)
        if len(inputs) > most:
            raise InputError(f"input: {len(inputs)} texts; of this model, one answer holds {most}")
        kinds = kinds or [[0] * len(tokens) for tokens in inputs]
        for tokens, row in zip(inputs, kinds, strict=True):
            if not 0 < len(tokens) <= self.max_positions:
                raise InputError(f"input: {len(tokens)} tokens; this model takes 1 to {self.max_positions}")
            if not all(0 <= token < self.vocabulary for token in tokens):
                raise InputError(f"input: token ids must be from 0 to {self.vocabulary - 1}")
            if len(row) != len(tokens) or not set(row) <= {0, 1}:
                raise InputError("input: one kind, 0 or 1, is needed for each token")
        self._missing[request] = len(inputs)
        self._rows[request] = []
        since = self.now()
        self._waiting.extend(Input(request, tokens, row, since) for tokens, row in zip(inputs, kinds, strict=True))

    @property
    def running(self) -> int:
        return sum(len(inputs) for inputs in self._flying.values())

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def waits_since(self) -> float:
        """When the first that waits came; inf when none does."""
        return self._waiting[0].since if self._waiting else math.inf

    def has_work(self) -> bool:
        return bool(self._waiting) and len(self._flying) < ROOM * self.stages

    def take(self) -> TakenInputs | None:
        """What `begin` would run, without the arrays that only shards need: as many inputs as the limits let run
        together, at least one."""
        if not self.has_work():
            return None
        taken: list[Input] = []
        budget = self.limits.step_tokens
        while self._waiting and len(taken) < self.limits.sequences:
            if taken and len(self._waiting[0].tokens) > budget:
                break
            taken.append(self._waiting.popleft())
            budget -= len(taken[-1].tokens)
        self._steps += 1
        self._flying[self._steps] = taken
        return TakenInputs(self._steps, taken)

    def begin(self) -> PassStep | None:
        taken = self.take()
        if taken is None:
            return None
        number, inputs = taken
        return build_pass_step(number, self.model, [one.tokens for one in inputs], [one.kinds for one in inputs])

    def complete(self, result: Result) -> list[Output]:
        assert isinstance(result, PassResult)
        outputs: list[Output] = []
        for one, row in zip(self._flying.pop(result.number), result.values, strict=True):
            if one.request not in self._missing:
                continue
            rows = self._rows[one.request]
            rows.append(row)
            if len(rows) == self._missing[one.request]:
                values = np.stack(rows).astype(np.float32)
                outputs.append(Answered(one.request, len(rows), values.tobytes()))
                self._forget(one.request)
        return outputs

    def cancel(self, request: str) -> list[Output]:
        if request not in self._missing:
            return []
        self._forget(request)
        self._waiting = deque(one for one in self._waiting if one.request != request)
        return [Refused(request, "cancelled", "cancelled by its client")]

    def is_closed(self, request: str) -> bool:
        return request not in self._missing

    def clear(self) -> list[str]:
        assert not self._flying
        requests = list(self._missing)
        for request in requests:
            self.cancel(request)
        return requests

    def _forget(self, request: str) -> None:
        del self._missing[request]
        del self._rows[request]
