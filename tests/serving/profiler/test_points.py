"""Which steps are measured, and engines that run exactly these."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from placement.costs.transformer import TransformerConfig
from serving.engine.blocks import BLOCK_TOKENS
from serving.engine.step import GenerateResult, PassResult
from serving.models import ModelConfig
from serving.profiler.points import STEP_TOKENS, BatchPoint, Room, StepPoint, choose_steps, corner_steps
from serving.profiler.scene import stage_batch, stage_generator

ROOMS = st.builds(
    lambda longest, more, most: Room(longest, (-(-longest // BLOCK_TOKENS) + more) * BLOCK_TOKENS, most),
    st.integers(2, 3000),
    st.integers(0, 1000),
    st.integers(1, 64),
)
SIZES = TransformerConfig(layers=2, hidden=32, heads=4, ffn=48, vocabulary=99)
CONFIG = ModelConfig(
    family="llama",
    task="generate",
    sizes=SIZES,
    max_positions=4096,
    norm_eps=1e-6,
    activation="silu",
    rope=None,
    qkv_bias=False,
    bias=False,
    qk_norm=False,
    windows=(0, 0),
    normalise_experts=False,
    eos_token_ids=(1, 2),
    labels=(),
)


def held_tokens(point):
    """In whole blocks."""
    each = [cached + 1 for cached in point.cached] + [start + count for start, count in point.chunks]
    return sum(-(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS for tokens in each)


@given(ROOMS, st.integers(0, 5))
def test_steps_keep_to_their_room(room, seed):
    for point in corner_steps(room) + choose_steps(12, room, seed):
        prefill, sequences, _, _ = point.load
        assert prefill + sequences >= 1
        assert sequences <= room.most_sequences
        assert prefill + sequences <= max(STEP_TOKENS, sequences)
        assert held_tokens(point) <= room.capacity
        assert all(1 <= cached < room.longest for cached in point.cached)
        assert all(start >= 0 and count >= 1 and start + count < room.longest for start, count in point.chunks)


def test_the_same_seed_gives_the_same_steps_and_another_gives_others():
    room = Room(512, 8192)
    assert choose_steps(9, room, 1) == choose_steps(9, room, 1)
    assert choose_steps(9, room, 1) != choose_steps(9, room, 2)
    kinds = {(bool(point.cached), bool(point.chunks)) for point in choose_steps(9, room, 1)}
    assert kinds == {(True, False), (False, True), (True, True)}


def test_the_load_of_a_step():
    point = StepPoint(cached=(10, 20), chunks=((0, 30), (40, 5)))
    assert point.load == (35, 2, 200, 30)
    assert point.tokens == 11 + 21 + 30 + 45


@given(ROOMS, st.integers(0, 3))
def test_an_engine_in_the_middle_of_its_work_runs_the_step_it_was_made_for(room, seed):
    blocks = room.capacity // BLOCK_TOKENS
    random = np.random.default_rng(seed)
    for point in corner_steps(room)[:3] + choose_steps(4, room, seed):
        generator = stage_generator(CONFIG, blocks, point, random)
        step = generator.begin()
        counts = np.diff(step.query_starts)
        starts = step.context_lens - counts
        wanted = [(cached, 1) for cached in point.cached] + list(point.chunks)
        assert list(zip(starts.tolist(), counts.tolist(), strict=True)) == wanted
        assert len(np.unique(step.slots)) == len(step.tokens)
        sampled = len(step.rows)
        assert sampled == len(wanted)
        result = GenerateResult(step.number, step.model, np.ones(sampled, np.int64), np.zeros(sampled, bool))
        outputs = generator.complete(result)
        assert [output.finish for output in outputs] == [None] * sampled


def test_a_batch_runs_whole():
    engine = stage_batch(CONFIG, BatchPoint(6, 20), np.random.default_rng(0))
    step = engine.begin()
    assert np.diff(step.starts).tolist() == [20] * 6
    outputs = engine.complete(PassResult(step.number, step.model, np.zeros((6, 32), np.float32)))
    assert len(outputs) == 6
    assert engine.begin() is None
