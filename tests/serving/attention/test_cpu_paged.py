"""Attention on a CPU core, against the twin."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.attention import cpu_paged, torch_paged
from serving.attention.cpu_kernel import SHORT
from tests.serving.attention.steps import Shape, make_step, replay, shapes, steps, store_anywhere

# A head of 80 has a tile of eight vectors and one of two.
SHAPES = shapes(head_dims=(16, 80), block_sizes=(8, 16, 128))


def assert_as_twin(step):
    torch.testing.assert_close(step.run(cpu_paged), step.run(torch_paged), atol=1e-5, rtol=1e-5)


@settings(max_examples=80, deadline=None)
@given(steps(SHAPES, longest=90))
def test_any_step(step):
    assert_as_twin(step)


@pytest.mark.parametrize("window", [0, 100])
def test_long_contexts_and_long_chunks(window):
    shape = Shape(2, 4, 16, 16)
    chunks = [(1, 3000), (SHORT, 500), (SHORT + 1, 500), (300, 0), (200, 333)]
    assert_as_twin(make_step(shape, chunks, window))


def test_a_chunk_whose_heads_are_no_whole_panels():
    assert_as_twin(make_step(Shape(2, 2, 24, 8), [(SHORT + 8, 20)]))


def test_a_query_gives_the_same_bits_in_any_long_chunk():
    shape, tokens = Shape(2, 2, 16, 8), 7 * (SHORT + 1)
    whole = replay(cpu_paged, shape, tokens, [tokens], 40)
    assert torch.equal(replay(cpu_paged, shape, tokens, [SHORT + 1] * 7, 40), whole)


def test_scores_far_apart_neither_overflow_nor_vanish():
    step = make_step(Shape(1, 2, 16, 8), [(1, 300), (20, 100)])
    step.query *= 300
    assert_as_twin(step)


@settings(max_examples=20, deadline=None)
@given(steps(shapes(head_dims=(7, 16), block_sizes=(5, 8))), st.sampled_from([torch.float32, torch.float64]))
def test_what_the_kernel_does_not_take(step, dtype):
    step.query, step.key_cache, step.value_cache = (
        each.to(dtype) for each in (step.query, step.key_cache, step.value_cache)
    )
    assert_as_twin(step)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.one_of(st.just(0), st.integers(1, 90)))
def test_chunks_then_decoding_give_what_one_prefill_gives(chunk_sizes, window):
    shape, chunk_sizes = Shape(2, 3, 16, 8), [*chunk_sizes, 1, 1, 1]
    tokens = sum(chunk_sizes)
    whole = replay(torch_paged, shape, tokens, [tokens], window)
    torch.testing.assert_close(replay(cpu_paged, shape, tokens, chunk_sizes, window), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tokens_go_to_their_slots_and_nowhere_else(dtype):
    for tokens in (0, 1, 512):
        caches, wanted = store_anywhere(cpu_paged, Shape(3, 1, 16, 8), tokens, dtype)
        assert all(torch.equal(cache, want) for cache, want in zip(caches, wanted, strict=True))


@pytest.mark.parametrize("queries", [1, SHORT + 1])
@pytest.mark.parametrize("block", [-1, 1000])
def test_a_block_that_the_cache_has_not_is_never_read(queries, block):
    step = make_step(Shape(1, 1, 16, 8), [(queries, 20)])
    step.block_tables[0, 1] = block
    with pytest.raises(IndexError, match="block table"):
        step.run(cpu_paged)


@pytest.mark.parametrize("queries", [1, SHORT + 1])
def test_a_context_beyond_its_table_is_never_read(queries):
    step = make_step(Shape(1, 1, 16, 8), [(queries, 20)])
    step.context_lens += 1000
    with pytest.raises(IndexError, match="block table"):
        step.run(cpu_paged)


@pytest.mark.parametrize("slot", [-1, 16])
def test_a_slot_that_the_cache_has_not_is_never_written(slot):
    caches = torch.zeros(2, 2, 1, 8, 16)
    with pytest.raises(IndexError, match="slots"):
        cpu_paged.store_kv(torch.ones(1, 1, 16), torch.ones(1, 1, 16), *caches, torch.tensor([slot]))
    assert not caches.any()
