"""The GPU kernels in Triton's interpreter, against the twin; test_triton_paged runs this file with TRITON_INTERPRET=1,
which has to be set before anything imports Triton."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import InputError
from serving.attention import torch_paged, triton_paged
from serving.attention.kernel_report import report
from tests.serving.attention.steps import Shape, make_step, replay, shapes, steps, store_anywhere

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SHAPES = shapes(head_dims=(8, 16, 40), block_sizes=(5, 16), kv_heads=(1, 2))


def assert_as_twin(step):
    tolerance = TOLERANCE[step.query.dtype]
    torch.testing.assert_close(step.run(triton_paged), step.run(torch_paged), atol=tolerance, rtol=tolerance)


@settings(max_examples=16, deadline=None)
@given(steps(SHAPES, longest=70, sequences=3))
def test_any_step(step):
    assert_as_twin(step)


@settings(max_examples=8, deadline=None)
@given(steps(SHAPES, longest=70, sequences=3, dtype=torch.float16))
def test_any_step_in_half_precision(step):
    assert_as_twin(step)


def test_bfloat16():
    assert_as_twin(make_step(Shape(2, 2, 16, 16), [(1, 70), (40, 9)], dtype=torch.bfloat16))


@pytest.mark.parametrize("head_dim", [128, 256])
def test_large_heads(head_dim):
    assert_as_twin(make_step(Shape(1, 2, head_dim, 16), [(1, 70), (40, 9)], window=30))


def test_a_group_larger_than_a_program_takes():
    assert_as_twin(make_step(Shape(1, 35, 16, 16), [(1, 40), (9, 3), (1, 0)]))


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.one_of(st.just(0), st.integers(1, 50)))
def test_chunks_then_decoding_give_what_one_prefill_gives(chunk_sizes, window):
    shape, chunk_sizes = Shape(1, 3, 16, 8), [*chunk_sizes, 1]
    tokens = sum(chunk_sizes)
    whole = replay(torch_paged, shape, tokens, [tokens], window)
    torch.testing.assert_close(replay(triton_paged, shape, tokens, chunk_sizes, window), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_tokens_go_to_their_slots_and_nowhere_else(dtype):
    for tokens in (0, 1, 37):
        caches, wanted = store_anywhere(triton_paged, Shape(3, 1, 8, 4), tokens, dtype)
        assert all(torch.equal(cache, want) for cache, want in zip(caches, wanted, strict=True))


def test_a_head_too_large_is_refused():
    with pytest.raises(InputError, match="at most 256"):
        make_step(Shape(1, 1, 300, 16), [(1, 1)]).run(triton_paged)


def test_interpreted_kernels_have_no_report():
    with pytest.raises(InputError, match="unset it"):
        report("sm_80")
