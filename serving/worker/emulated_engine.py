"""The real engines, with times in the place of computing: what runs next, how long each stage takes, what comes of it.

An emulated model that generates finds all tokens equally likely, but never one that ends the answer: that comes only
where a request forces it by a logit bias of 100. Its vectors are of length one, the same for the same tokens.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from placement.profile import ShapeProfile
from serving.engine import Generator, PassEngine, TokenGoal, make_generator
from serving.engine.goal import step_load
from serving.engine.scheduler import Limits
from serving.engine.sequence import Sequence
from serving.engine.step import GenerateResult, PassResult, Result
from serving.sampling import TokenLogprobs
from serving.sampling.parameters import LARGEST_BIAS
from serving.worker.emulated_model import EmulatedModel, cache_blocks
from serving.worker.messages import ModelSpec

# Odd numbers without a pattern (the constants of SplitMix64).
_STRIDE, _MIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


@dataclass(frozen=True)
class Work:
    """A step of a model: it passes the stages once for each row of `stage_s`, seconds [passes][stages]."""

    model: str
    stage_s: list[list[float]]
    result: Result


class EmulatedEngine(Protocol):
    @property
    def engine(self) -> Generator | PassEngine: ...

    def take(self) -> Work | None:
        """The next step, to be begun at once; None when nothing can run now."""


def make_engine(
    model: EmulatedModel, entry: ShapeProfile, spec: ModelSpec, clock: Callable[[], float]
) -> EmulatedEngine:
    """`clock` tells when the step that begins does so, and when the one that ends does."""
    limits = Limits(spec.step_tokens, spec.max_sequences)
    if not model.generates:
        engine = PassEngine(spec.name, model.vocabulary, model.max_positions, model.width, entry.pp, limits)
        return PassTimes(engine, entry)
    assert entry.generation is not None
    goal = None if spec.tpot_s is None else TokenGoal(spec.tpot_s, entry.generation.stages, clock)
    generator = make_generator(
        spec.name,
        vocabulary=model.vocabulary,
        max_positions=model.max_positions,
        eos_token_ids=model.eos_token_ids,
        blocks=cache_blocks(entry, spec.kv_bytes),
        lanes=entry.pp,
        limits=limits,
        goal=goal,
    )
    return GenerateTimes(generator, entry)


class GenerateTimes:
    """Steps of a generating model take what its profile's StepCost says. The arrays of a step, nine tenths of an idle
    engine's time, are never made."""

    def __init__(self, engine: Generator, entry: ShapeProfile) -> None:
        assert entry.generation is not None
        self.engine = engine
        self._costs = entry.generation.stages

    def take(self) -> Work | None:
        taken = self.engine.take()
        if taken is None:
            return None
        number, chunks = taken
        load = step_load(chunks)
        stage_s = [cost.seconds(*load) for cost in self._costs]
        sampled = [chunk.sequence for chunk in chunks if chunk.samples]
        return Work(self.engine.model, [stage_s], self._result(number, sampled))

    def _result(self, number: int, sampled: list[Sequence]) -> GenerateResult:
        vocabulary = self.engine.vocabulary
        tokens = np.array([choose_token(one, vocabulary) for one in sampled], np.int64)
        wishes = [one.params.logprobs for one in sampled]
        logprobs = None
        if any(wish is not None for wish in wishes):
            logprobs = tuple(None if wish is None else _logprobs(wish, vocabulary) for wish in wishes)
        return GenerateResult(number, self.engine.model, tokens, np.zeros(len(sampled), bool), logprobs)


class PassTimes:
    """Batches of a one-pass model take what its profile says of the next larger batch; more than the largest pass as
    several batches.
    """

    def __init__(self, engine: PassEngine, entry: ShapeProfile) -> None:
        self.engine = engine
        self._latency = entry.stage_latency
        self._sizes = sorted(entry.stage_latency)

    def take(self) -> Work | None:
        taken = self.engine.take()
        if taken is None:
            return None
        number, inputs = taken
        batches = split_batch(len(inputs), self._sizes)
        values = np.array([unit_vector(one.tokens, self.engine.width) for one in inputs])
        result = PassResult(number, self.engine.model, values)
        return Work(self.engine.model, [list(self._latency[size]) for size in batches], result)


def split_batch(inputs: int, sizes: list[int]) -> list[int]:
    """The profile's batch sizes, ascending, that so many inputs pass as."""
    whole, rest = divmod(inputs, sizes[-1])
    return [sizes[-1]] * whole + [next(size for size in sizes if size >= rest)] * (rest > 0)


def choose_token(one: Sequence, vocabulary: int) -> int:
    """From its seed and index; where it is greedy, from its last token and its length. Plain numbers: a handful of
    sequences costs less this way than one array operation.
    """
    is_greedy = one.params.temperature == 0
    drawn = _mixed(one.tokens[-1], len(one)) if is_greedy else _mixed(one.seed, len(one.output_ids))
    token = drawn % vocabulary
    return _wished(token, one, vocabulary) if one.stop_tokens or one.params.logit_bias else token


def unit_vector(tokens: list[int], width: int) -> NDArray[np.float32]:
    """float32 [width] of length one, from a digest of the tokens: few array operations, since thousands of emulated
    workers share a core."""
    digest = hashlib.shake_128(array("q", tokens)).digest(4 * width)
    row: NDArray[np.float32] = np.frombuffer(digest, np.int32).astype(np.float32)
    row /= math.sqrt(row @ row)
    return row


def _mixed(seed: int, index: int) -> int:
    """32 bits that follow from both."""
    bits = (seed + (index + 1) * _STRIDE) * _MIX % 2**64
    return ((bits ^ bits >> 29) * _MIX % 2**64) >> 32


def _wished(token: int, one: Sequence, vocabulary: int) -> int:
    may_stop = len(one.output_ids) >= one.params.min_tokens
    for wish, bias in (one.params.logit_bias or {}).items():
        if bias >= LARGEST_BIAS and (may_stop or wish not in one.stop_tokens):
            return wish
    for offset in range(min(len(one.stop_tokens) + 1, vocabulary)):
        if (token + offset) % vocabulary not in one.stop_tokens:
            return (token + offset) % vocabulary
    return token


def _logprobs(count: int, vocabulary: int) -> TokenLogprobs:
    each = -math.log(vocabulary)
    count = min(count, vocabulary)
    return TokenLogprobs(each, list(range(count)), [each] * count)
