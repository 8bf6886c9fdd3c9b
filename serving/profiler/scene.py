"""Engines in the middle of their work: a Generator whose next step is a given point. Knows nothing of tensors.

Its cache is only said to be full: what is in the blocks does not change how long a step takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from serving.engine import Generator, Limits, PassEngine, make_generator
from serving.engine.sequence import Sequence
from serving.models import ModelConfig
from serving.profiler.points import STEP_TOKENS, BatchPoint, StepPoint
from serving.sampling import SamplingParams

_ENDLESS = 2**31
_PARAMS = SamplingParams(max_tokens=_ENDLESS)
_SOME_KEY = bytes(16)
MODEL = "measured"


def stage_generator(config: ModelConfig, blocks: int, point: StepPoint, random: np.random.Generator) -> Generator:
    """`begin` gives the step of this point: everybody who decodes, and all tokens of each chunk."""
    generator = make_generator(
        MODEL,
        vocabulary=config.sizes.vocabulary,
        max_positions=config.max_positions,
        eos_token_ids=config.eos_token_ids,
        blocks=blocks,
        limits=Limits(step_tokens=max(STEP_TOKENS, sum(point.load[:2])), sequences=_ENDLESS),
    )
    text = random.integers(0, config.sizes.vocabulary, point.tokens)
    begin = 0
    for start, count, made in [(cached, 1, 1) for cached in point.cached] + [(*chunk, 0) for chunk in point.chunks]:
        _place(generator, text[begin : begin + start + count], start, made)
        begin += start + count
    return generator


def stage_batch(config: ModelConfig, point: BatchPoint, random: np.random.Generator) -> PassEngine:
    """`begin` gives the step of this batch."""
    limits = Limits(step_tokens=point.inputs * point.tokens, sequences=point.inputs)
    engine = PassEngine(MODEL, config.sizes.vocabulary, config.max_positions, config.sizes.hidden, limits=limits)
    texts = random.integers(0, config.sizes.vocabulary, (point.inputs, point.tokens))
    for number, text in enumerate(texts.tolist()):
        engine.submit(str(number), [text])
    return engine


def _place(generator: Generator, text: NDArray[np.int64], start: int, made: int) -> None:
    """A sequence that has run its first `start` tokens and made `made` of them itself."""
    scheduler, tokens = generator.scheduler, text.tolist()
    size = scheduler.pool.block_tokens
    one = Sequence(
        request=str(scheduler.running),
        index=0,
        tokens=tokens,
        params=_PARAMS,
        seed=int(text[0]),
        stop_tokens=frozenset(),
        max_tokens=_ENDLESS,
        output_ids=tokens[len(tokens) - made :],
        computed=start,
        keys=[_SOME_KEY] * (start // size),
    )
    held = start if made else len(tokens)
    one.extend_blocks(scheduler.pool.allocate(scheduler.pool.needed(held, 0)))
    scheduler.lanes[0].running.append(one)
