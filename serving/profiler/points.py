"""Which engine steps and batches are measured. Only numbers: nothing of tensors or time.

Steps to fit and steps to judge the fit by are drawn alike, from all that a step can be: decoding alone, prefill
alone, both, each size as likely on a logarithmic scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from serving.engine.blocks import BLOCK_TOKENS

BATCHES = (1, 2, 4, 8, 16)
STEP_TOKENS = 512
SMALLEST_CHUNK = 8


class StepPoint(msgspec.Struct, frozen=True, tag="step"):
    """One step of a generating model."""

    cached: tuple[int, ...] = ()
    """Of each decoding sequence, its tokens in the cache."""
    chunks: tuple[tuple[int, int], ...] = ()
    """Of each prefill, its tokens in the cache and the tokens to run."""

    @property
    def load(self) -> tuple[int, int, int, int]:
        """P, S, C and K of profile.StepCost."""
        prefill = sum(count for _, count in self.chunks)
        context = sum(start * count for start, count in self.chunks)
        return prefill, len(self.cached), context, sum(self.cached)

    @property
    def tokens(self) -> int:
        """In the cache once it has run."""
        return sum(self.cached) + len(self.cached) + sum(start + count for start, count in self.chunks)


class BatchPoint(msgspec.Struct, frozen=True, tag="batch"):
    """One batch of a one-pass model."""

    inputs: int
    tokens: int
    """Of each input."""


Point = StepPoint | BatchPoint


@dataclass(frozen=True)
class Room:
    """What a step of a model can be."""

    longest: int
    """Tokens of one sequence."""
    capacity: int
    """Tokens in the cache, of all sequences together: whole blocks."""
    most_sequences: int = 64
    """That decode."""

    def __post_init__(self) -> None:
        assert self.longest >= 2
        assert self.capacity >= self.longest
        assert self.capacity % BLOCK_TOKENS == 0


def choose_steps(count: int, room: Room, seed: int) -> list[StepPoint]:
    """The same seed gives the same steps."""
    generator = np.random.default_rng(seed)
    return [_draw(room, generator, kind=number % 3) for number in range(count)]


def corner_steps(room: Room) -> list[StepPoint]:
    """The extremes, between which others are drawn: no fit should have to guess beyond what it has seen."""
    short, long = min(16, room.longest - 1), room.longest - 1
    prompt = min(STEP_TOKENS, long)
    many = _fitting(short, room)
    crowd = _fitting(long, room)
    return [
        StepPoint(cached=(short,)),
        StepPoint(cached=(long,)),
        StepPoint(cached=(short,) * many),
        StepPoint(cached=(long,) * crowd),
        StepPoint(chunks=((0, min(SMALLEST_CHUNK, long)),)),
        StepPoint(chunks=((0, prompt),)),
        StepPoint(chunks=((long - prompt, prompt),)),
    ]


def _draw(room: Room, generator: np.random.Generator, kind: int) -> StepPoint:
    """kind 0: decoding, 1: prefill, 2: both."""
    left, cached, chunks = room.capacity, [], []
    longest = room.longest - 1
    if kind != 1:
        usual = _log_uniform(generator, 1, longest)
        for _ in range(_log_uniform(generator, 1, room.most_sequences)):
            tokens = min(int(usual * generator.uniform(0.5, 1.5)) + 1, longest)
            if _blocks(tokens + 1) <= left:
                cached.append(tokens)
                left -= _blocks(tokens + 1)
    tokens_left = STEP_TOKENS - len(cached)
    if kind != 0:
        for _ in range(int(generator.integers(1, 4))):
            count = min(_log_uniform(generator, SMALLEST_CHUNK, STEP_TOKENS), tokens_left, longest)
            start = 0 if generator.uniform() < 0.5 else _log_uniform(generator, 1, longest)
            start = min(start, longest - count)
            if count >= 1 and _blocks(start + count) <= left:
                chunks.append((start, count))
                left -= _blocks(start + count)
                tokens_left -= count
    if not cached and not chunks:
        cached.append(1)
    return StepPoint(tuple(cached), tuple(chunks))


def _fitting(tokens: int, room: Room) -> int:
    """Decoding sequences with so many cached tokens each."""
    return min(room.most_sequences, room.capacity // _blocks(tokens + 1))


def _blocks(tokens: int) -> int:
    """Tokens that whole blocks for so many hold."""
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


def _log_uniform(generator: np.random.Generator, least: int, most: int) -> int:
    most = max(most, least)
    return round(math.exp(generator.uniform(math.log(least), math.log(most))))
