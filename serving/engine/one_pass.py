"""The requests of one model that answers in one pass: their inputs are batched, and answered when all are done."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from placement.errors import InputError
from serving.engine.outputs import Answered, Output, Refused
from serving.engine.scheduler import Limits
from serving.engine.step import PassResult, PassStep, Result, build_pass_step


@dataclass
class _Input:
    request: str
    tokens: list[int]
    kinds: list[int]
    since: float


@dataclass
class PassEngine:
    """Engine of a one-pass model: inputs of whole requests are run together, first come first served."""

    model: str
    vocabulary: int
    max_positions: int
    width: int
    """Numbers in an answer's row."""
    lanes: int = 1
    limits: Limits = field(default_factory=Limits)
    now: Callable[[], float] = time.monotonic
    _waiting: deque[_Input] = field(default_factory=deque)
    _missing: dict[str, int] = field(default_factory=dict)
    _rows: dict[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    _flying: dict[int, list[_Input]] = field(default_factory=dict)
    _steps: int = 0

    def submit(self, request: str, inputs: list[list[int]], kinds: list[list[int]] | None = None) -> None:
        """kinds: for each input's tokens 1 where they belong to a second sentence."""
        if request in self._missing:
            raise InputError(f"request {request!r} is open already; ids must differ")
        if not inputs:
            raise InputError("input: nothing given; at least one text is needed")
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
        self._waiting.extend(_Input(request, tokens, row, since) for tokens, row in zip(inputs, kinds, strict=True))

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
        return bool(self._waiting) and len(self._flying) < self.lanes

    def begin(self) -> PassStep | None:
        """As many inputs as the limits let run together, at least one."""
        if not self.has_work():
            return None
        taken: list[_Input] = []
        budget = self.limits.step_tokens
        while self._waiting and len(taken) < self.limits.sequences:
            if taken and len(self._waiting[0].tokens) > budget:
                break
            taken.append(self._waiting.popleft())
            budget -= len(taken[-1].tokens)
        self._steps += 1
        self._flying[self._steps] = taken
        return build_pass_step(self._steps, self.model, [one.tokens for one in taken], [one.kinds for one in taken])

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
