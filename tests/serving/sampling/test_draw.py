"""Which tokens can come and how often: against transformers' own processors, and against softmax."""

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from serving.sampling import uniforms
from serving.sampling.draw import CANDIDATES
from serving.sampling.sampler import sample
from tests.serving.sampling.columns import columns

GRID = 2000
LAST = 1 - 2**-53
"""The largest number that a row can have."""


def filtered(logits, temperature, top_k, top_p, min_p):
    """Probabilities after transformers' warpers, in its order."""
    scores = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    return torch.softmax(scores.double(), -1)[0].numpy()


def on_a_grid(logits, grid=GRID, **filters):
    """How often each token comes when the numbers are evenly spread: its probability, within one of the grid."""
    rows = columns(grid, uniform=(np.arange(grid) + 0.5) / grid, **filters)
    tokens = sample(logits.expand(grid, -1).contiguous(), rows).tokens
    return np.bincount(tokens, minlength=logits.shape[1])


@st.composite
def filters(draw):
    return {
        "temperature": draw(st.sampled_from([0.3, 0.7, 1.0, 1.9])),
        "top_k": draw(st.sampled_from([0, 2, 3, 10, 40, 150, 1000])),
        "top_p": draw(st.sampled_from([0.05, 0.5, 0.9, 0.99, 1.0])),
        "min_p": draw(st.sampled_from([0.0, 0.02, 0.3])),
    }


def is_borderline(logits, wishes):
    """Whether some filter's edge is so near a token that rounding decides."""
    order = torch.softmax(logits.double()[0] / wishes["temperature"], -1).sort(descending=True).values
    order = order[: wishes["top_k"] or None]
    order = order / order.sum()
    edges = torch.cat([order.cumsum(0)[:-1] - wishes["top_p"], order / order[0] - wishes["min_p"]])
    return bool(edges.abs().min() < 1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([2, 5, 60, 400]), st.sampled_from([0.2, 1.0, 4.0]), filters())
def test_tokens_come_as_often_as_transformers_says(seed, vocab, spread, wishes):
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    assume(not is_borderline(logits, wishes))
    expected = filtered(logits, **wishes)
    counts = on_a_grid(logits, **wishes)
    assert np.abs(counts - expected * GRID).max() <= 1.01
    assert not counts[expected == 0].any()


@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0])
def test_a_nucleus_beyond_the_candidates_is_found(spread):
    vocab = 8 * CANDIDATES
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(1)) * spread
    wishes = {"temperature": 1.0, "top_k": 0, "top_p": 0.8, "min_p": 0.0}
    counts = on_a_grid(logits, grid=20 * vocab, **wishes)
    if spread:
        assert np.abs(counts - filtered(logits, **wishes) * 20 * vocab).max() <= 1.01
    else:  # all equal: the lowest ids fill the nucleus
        expected = np.ceil(0.8 * vocab)
        assert (counts > 0).sum() == pytest.approx(expected, abs=1)
        assert counts[: int(expected) - 1].min() > 0


def test_a_top_k_beyond_the_candidates_is_found_beside_a_small_one():
    """Rows of both kinds in one batch: top_p is a share of all that top_k leaves."""
    wishes = {"temperature": 1.0, "top_k": 4 * CANDIDATES, "top_p": 0.2, "min_p": 0.0}
    logits = torch.randn(1, 8 * CANDIDATES, generator=torch.Generator().manual_seed(2))
    numbers = np.repeat((np.arange(GRID) + 0.5) / GRID, 2)
    rows = columns(2 * GRID, uniform=numbers, **wishes | {"top_k": [4 * CANDIDATES, 5] * GRID})
    tokens = sample(logits.expand(2 * GRID, -1).contiguous(), rows).tokens
    for first, top_k in enumerate((4 * CANDIDATES, 5)):
        counts = np.bincount(tokens[first::2], minlength=logits.shape[1])
        expected = filtered(logits, **wishes | {"top_k": top_k})
        assert np.abs(counts - expected * GRID).max() <= 1.01


def test_tokens_as_likely_as_the_kth_are_kept():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    counts = on_a_grid(logits, top_k=2)
    assert (counts > 0).tolist() == [False, True, True, True, True, False]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=300), filters(), st.floats(0, LAST))
@example([0, 0], {"temperature": 0.3, "top_k": 0, "top_p": 0.9, "min_p": 0.0}, LAST)
def test_equal_logits_stand_in_the_order_of_their_ids(levels, wishes, uniform):
    """A larger number never takes a likelier token, nor among equals a lower id."""
    assume(wishes["top_p"] < 1)
    logits = torch.tensor([levels], dtype=torch.float32)
    numbers = [uniform, min(uniform + (1 - uniform) / 2, LAST)]
    first, second = sample(logits.expand(2, -1).contiguous(), columns(2, uniform=numbers, **wishes)).tokens
    assert (-levels[first], first) <= (-levels[second], second)


@pytest.mark.parametrize(
    "wishes",
    [{}, {"temperature": 0.5}, {"top_k": 7}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 20, "top_p": 0.7}],
)
def test_seeds_draw_the_distribution(wishes):
    """Chi-square over 20,000 seeds."""
    draws, vocab = 20_000, 30
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(5)) * 2
    numbers = uniforms(np.arange(draws), np.full(draws, 3))
    tokens = sample(logits.expand(draws, -1).contiguous(), columns(draws, uniform=numbers, **wishes)).tokens
    expected = filtered(logits, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **wishes})
    counts = np.bincount(tokens, minlength=vocab)
    assert not counts[expected == 0].any()
    common = expected * draws >= 5
    rare = ~common & (expected > 0)
    observed, wanted = counts[common].astype(float), expected[common] * draws
    if rare.any():
        observed, wanted = np.append(observed, counts[rare].sum()), np.append(wanted, expected[rare].sum() * draws)
    assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("wishes", [{}, {"min_p": 0.01}, {"top_p": 0.99}, {"top_k": 3}, {"top_k": 299}])
def test_a_forbidden_token_never_comes(uniform, wishes):
    """Neither at the ends, nor when all but one token are impossible."""
    logits = torch.full((3, 300), -torch.inf)
    logits[0, 17] = 3.0
    logits[1, [5, 299]] = torch.tensor([1.0, 1.0])
    logits[2] = -2e4
    logits[2, 3] = 2e4  # all others underflow
    tokens = sample(logits, columns(3, uniform=uniform, **wishes)).tokens
    assert tokens[0] == 17
    assert tokens[1] in (5, 299)
    assert tokens[2] == 3


def test_huge_logits_and_a_tiny_temperature_do_not_overflow():
    logits = torch.tensor([[1e38, -1e38, 0.0]]).expand(3, -1).contiguous()
    sampled = sample(logits, columns(3, temperature=[2e-5, 1e-4, 1.0], top_p=[1.0, 0.9, 1.0]))
    assert sampled.tokens.tolist() == [0, 0, 0]
    assert not sampled.failed.any()
