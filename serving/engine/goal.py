"""Cuts prompts so that those who decode get their next token in time: the planner's rule (docs/generation.md, "Goal"),
on a clock. What a step takes is what the profile says, times a factor learned from the steps that ran.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from placement.profile import StepCost
from serving.engine.scheduler import Chunk, Lane

LEAST_STRETCH, MOST_STRETCH = 0.5, 5.0
NEW_SHARE = 1 / 16
"""Of the last step in what is learned."""


class Expected(NamedTuple):
    """Of a step: when it began and should end."""

    began: float
    end: float


class Load(NamedTuple):
    """What StepCost asks for."""

    prefill: int
    sequences: int
    context: int
    """The sum over prefill chunks of tokens x tokens already cached."""
    cached: int


def step_load(chunks: Iterable[Chunk]) -> Load:
    prefill = sequences = context = cached = 0
    for chunk in chunks:
        if chunk.decodes:
            sequences += 1
            cached += chunk.start
        else:
            prefill += chunk.count
            context += chunk.count * chunk.start
    return Load(prefill, sequences, context, cached)


@dataclass
class TokenGoal:
    """Of one model on one group: seconds between two tokens of a sequence, and what a step costs each stage."""

    tpot_s: float
    costs: tuple[StepCost, ...]
    clock: Callable[[], float] = time.monotonic
    stretch: float = 1.0
    """What steps take of what they cost: the mean of those that were cut, plus its mean deviation (as TCP waits)."""
    _mean: float = 1.0
    _deviation: float = 0.0
    _free: list[float] = field(default_factory=list)
    """When each stage has done the steps of this model that were begun, as expected."""

    def __post_init__(self) -> None:
        self._free = [-math.inf] * len(self.costs)

    def most(self, lane: Lane, chunks: list[Chunk], done: int, most: int) -> int:
        """How many more tokens, up to `most`, of a prompt with `done` cached ones may join a step of these chunks."""
        limit, now, load = self._limit(lane, chunks), self.clock(), step_load(chunks)

        def fits(tokens: int) -> bool:
            more = load._replace(prefill=load.prefill + tokens, context=load.context + tokens * done)
            return self._ends(now, more)[-1] <= limit

        if limit == math.inf or fits(most):
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def begin(self, chunks: list[Chunk]) -> Expected | None:
        """A step begins now; returns what is expected of it, if it is one of those that are cut."""
        load, now = step_load(chunks), self.clock()
        self._free = self._ends(now, load)
        return Expected(now, self._free[-1]) if load.prefill and load.sequences else None

    def end(self, lane: Lane, expected: Expected | None, is_last: bool) -> float:
        """A step of the lane ends, with `is_last` the last one in flight; returns the time."""
        now = lane.ended_at = self.clock()
        if expected is not None:
            self._learn(self.stretch * (now - expected.began) / (expected.end - expected.began))
        if is_last:
            self._free = [min(free, now) for free in self._free]
        return now

    def _learn(self, ratio: float) -> None:
        """Of a step's time and its cost."""
        self._deviation += NEW_SHARE * (abs(ratio - self._mean) - self._deviation)
        self._mean += NEW_SHARE * (ratio - self._mean)
        self.stretch = min(max(self._mean + self._deviation, LEAST_STRETCH), MOST_STRETCH)

    def _limit(self, lane: Lane, chunks: list[Chunk]) -> float:
        """When a step shall end at the latest: with the most pressed sequence's next token, or, where that is late
        already, one goal after the lane's last step."""
        decoding = [chunk.sequence for chunk in chunks if chunk.decodes]
        due = min((one.first_at + self.tpot_s * len(one.output_ids) for one in decoding), default=math.inf)
        return max(due, lane.ended_at + self.tpot_s)

    def _ends(self, now: float, load: Load) -> list[float]:
        """When a step that begins now leaves each stage."""
        ends, at = [], now
        for free, cost in zip(self._free, self.costs, strict=True):
            at = max(at, free) + self.stretch * cost.seconds(*load)
            ends.append(at)
        return ends
