"""The requests of one generating model on one group, from submission to their last token. Knows neither tensors nor
processes: `begin` says what to run next, `complete` takes what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from placement.errors import InputError
from serving.engine.blocks import BlockPool
from serving.engine.goal import Expected, TokenGoal
from serving.engine.outputs import Output, Produced, Refused
from serving.engine.scheduler import Chunk, Lane, Limits, Scheduler
from serving.engine.sequence import Sequence
from serving.engine.step import GenerateResult, GenerateStep, Result, build_generate_step
from serving.sampling import SamplingParams, fresh_seed, validate

_SEED_STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of a request's answers."""


def make_generator(
    model: str,
    *,
    vocabulary: int,
    max_positions: int,
    eos_token_ids: tuple[int, ...],
    blocks: int,
    lanes: int = 1,
    limits: Limits | None = None,
    goal: TokenGoal | None = None,
) -> Generator:
    pool = BlockPool(blocks)
    scheduler = Scheduler(pool, limits or Limits(), [Lane() for _ in range(lanes)])
    if goal is not None:
        scheduler.cut = goal.most
    return Generator(model, vocabulary, max_positions, eos_token_ids, scheduler, goal)


class _Flying(NamedTuple):
    lane: Lane
    chunks: list[Chunk]
    expected: Expected | None


class Taken(NamedTuple):
    """A step that has begun, by its number."""

    number: int
    chunks: list[Chunk]


@dataclass
class Generator:
    """Engine of a model that answers token by token."""

    model: str
    vocabulary: int
    max_positions: int
    eos_token_ids: tuple[int, ...]
    scheduler: Scheduler
    goal: TokenGoal | None = None
    """By which prompts are cut; without one, only the limits do."""
    _open: dict[str, list[Sequence]] = field(default_factory=dict)
    _flying: dict[int, _Flying] = field(default_factory=dict)
    _steps: int = 0
    _turn: int = 0
    _cancelled: int = 0
    """Sequences that go when the step they are in returns."""

    def submit(self, request: str, prompt: Tokens[int], params: SamplingParams) -> None:
        """Queue a request; an InputError says what is wrong with it."""
        longest = self.longest
        if request in self._open:
            raise InputError(f"request {request!r} is open already; ids must differ")
        if not prompt:
            raise InputError("prompt: it has no tokens; at least one is needed")
        if len(prompt) >= longest:
            raise InputError(f"prompt: {len(prompt)} tokens; this model takes at most {longest - 1} here")
        if not all(0 <= token < self.vocabulary for token in prompt):
            raise InputError(f"prompt: token ids must be from 0 to {self.vocabulary - 1}")
        validate(params, self.vocabulary, self.max_positions)
        self._open[request] = [self._sequence(request, index, prompt, params) for index in range(params.n)]
        self.scheduler.waiting.extend(self._open[request])

    @property
    def longest(self) -> int:
        """Tokens that one sequence can have, output included."""
        pool = self.scheduler.pool
        return min(self.max_positions, pool.blocks * pool.block_tokens)

    @property
    def running(self) -> int:
        return self.scheduler.running

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    def has_work(self) -> bool:
        return any(self.scheduler.has_work(lane) for lane in self.scheduler.lanes)

    def take(self) -> Taken | None:
        """What `begin` would run, without the arrays that only shards need. Lanes take turns; one that has nothing to
        run is passed over.
        """
        lanes = self.scheduler.lanes
        for offset in range(len(lanes)):
            lane = lanes[(self._turn + offset) % len(lanes)]
            if self.scheduler.has_work(lane) and (chunks := self.scheduler.schedule(lane)):
                self._turn = (self._turn + offset + 1) % len(lanes)
                self._steps += 1
                lane.in_flight = True
                expected = None if self.goal is None else self.goal.begin(chunks)
                self._flying[self._steps] = _Flying(lane, chunks, expected)
                return Taken(self._steps, chunks)
        return None

    def begin(self) -> GenerateStep | None:
        taken = self.take()
        if taken is None:
            return None
        size = self.scheduler.pool.block_tokens
        return build_generate_step(taken.number, self.model, taken.chunks, size, self.eos_token_ids)

    def complete(self, result: Result) -> list[Output]:
        assert isinstance(result, GenerateResult)
        lane, chunks, expected = self._flying.pop(result.number)
        lane.in_flight = False
        now = 0.0 if self.goal is None else self.goal.end(lane, expected, is_last=not self._flying)
        outputs: list[Output] = []
        sampled = [chunk.sequence for chunk in chunks if chunk.samples]
        tokens, failed = result.tokens.tolist(), result.failed.tolist()
        for row, one in enumerate(sampled):
            if one.is_cancelled:
                continue
            if failed[row]:
                outputs += self._fail(one.request)
                continue
            is_first = not one.output_ids
            if is_first:
                one.first_at = now
            finish = one.accept(tokens[row])
            logprobs = None if result.logprobs is None else result.logprobs[row]
            cached = one.cached_prompt if is_first else 0
            outputs.append(Produced(one.request, one.index, tokens[row], finish, logprobs, cached))
            if finish is not None:
                self.scheduler.finish(lane, one)
                self._close(one)
        if self._cancelled:
            for one in [one for one in lane.running if one.is_cancelled]:
                self.scheduler.finish(lane, one)
                self._cancelled -= 1
        return outputs

    def cancel(self, request: str) -> list[Output]:
        sequences = self._open.pop(request, [])
        for one in sequences:
            one.is_cancelled = True
            lane = next((lane for lane in self.scheduler.lanes if one in lane.running), None)
            if lane is None:
                self.scheduler.waiting.remove(one)
            elif lane.in_flight:
                self._cancelled += 1
            else:
                self.scheduler.finish(lane, one)
        return [Produced(request, one.index, None, "cancelled") for one in sequences]

    def is_closed(self, request: str) -> bool:
        return request not in self._open

    def forget_cache(self) -> None:
        """The memory of the cache was given up: no prefix is known any more. Only while nothing is open."""
        assert not self._open
        self.scheduler.pool = BlockPool(self.scheduler.pool.blocks, self.scheduler.pool.block_tokens)

    def clear(self) -> list[str]:
        """Only while no step is in flight: what runs could still write."""
        assert not self._flying
        requests = list(self._open)
        for request in requests:
            self.cancel(request)
        return requests

    def _sequence(self, request: str, index: int, prompt: Tokens[int], params: SamplingParams) -> Sequence:
        seed = fresh_seed() if params.seed is None else params.seed
        stops = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(self.eos_token_ids))
        return Sequence(
            request=request,
            index=index,
            tokens=list(prompt),
            params=params,
            seed=int(np.int64(np.uint64((seed + index * _SEED_STRIDE) % 2**64))),
            stop_tokens=stops,
            max_tokens=min(params.max_tokens, self.longest - len(prompt)),
        )

    def _fail(self, request: str) -> list[Output]:
        self.cancel(request)
        return [Refused(request, "failed", f"{self.model} gave no usable probabilities (NaN or all tokens forbidden)")]

    def _close(self, one: Sequence) -> None:
        siblings = self._open[one.request]
        siblings.remove(one)
        if not siblings:
            del self._open[one.request]
