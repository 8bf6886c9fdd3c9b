"""The twin, against attention of every query on its own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.masking_utils import sliding_window_causal_mask_function

from serving.attention import torch_paged
from tests.serving.attention.steps import Shape, dense, make_step, replay, shapes, steps, store_anywhere

SHAPES = shapes(head_dims=(4, 7, 16), block_sizes=(1, 4, 16))


@settings(max_examples=60, deadline=None)
@given(steps(SHAPES, longest=20))
def test_every_query_sees_what_it_should(step):
    torch.testing.assert_close(step.run(torch_paged).double(), dense(step), atol=1e-5, rtol=1e-5)


def test_half_precision_is_kept_outside_alone():
    step = make_step(Shape(2, 2, 16, 4), [(5, 20), (1, 9)], dtype=torch.float16)
    out = step.run(torch_paged)
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.double(), dense(step), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_window_is_that_of_transformers(window):
    """With one value that is 1 at a position and 0 elsewhere, the outcome tells who sees that position."""
    visible = sliding_window_causal_mask_function(window)
    length = 8
    for position in range(length):
        step = make_step(Shape(1, 1, 4, 4), [(length, 0)], window)
        table = step.block_tables[0]
        step.value_cache.zero_()
        step.value_cache[table[position // 4], :, position % 4] = 1
        seen = step.run(torch_paged)[:, 0, 0] > 0
        assert seen.tolist() == [bool(visible(0, 0, torch.tensor(row), position)) for row in range(length)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 12))
def test_chunks_give_what_one_prefill_gives(chunk_sizes, window):
    shape, tokens = Shape(2, 2, 8, 4), sum(chunk_sizes)
    whole = replay(torch_paged, shape, tokens, [tokens], window)
    torch.testing.assert_close(replay(torch_paged, shape, tokens, chunk_sizes, window), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tokens_go_to_their_slots_and_nowhere_else(dtype):
    for tokens in (0, 1, 37):
        caches, wanted = store_anywhere(torch_paged, Shape(3, 1, 8, 4), tokens, dtype)
        assert all(torch.equal(cache, want) for cache, want in zip(caches, wanted, strict=True))
