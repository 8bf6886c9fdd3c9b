"""The sampler as a whole: rows that do not know of each other, greedy rows, failures and log-probabilities."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.sampling import SamplingRows
from serving.sampling.sampler import sample
from tests.serving.sampling.columns import columns, edit


def random_logits(rows, vocab, seed=0, spread=3.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def row_of(rows, at):
    """One row of the columns as a batch of its own."""
    names = ("temperature", "top_k", "top_p", "min_p", "uniform", "logprobs")
    own = [edit(0, e.prompt_ids, e.output_ids, e.repetition_penalty) for e in rows.edits if e.row == at]
    return SamplingRows(**{name: getattr(rows, name)[at : at + 1] for name in names}, edits=tuple(own))


@st.composite
def worlds(draw):
    """Logits of odd and even sizes, peaked, flat or full of ties, with rows of every kind."""
    rows = draw(st.integers(1, 9))
    vocab = draw(st.sampled_from([3, 31, 129, 500, 3001]))
    logits = random_logits(rows, vocab, draw(st.integers(0, 2**31)), draw(st.sampled_from([0.1, 3.0, 20.0])))
    if draw(st.booleans()):
        logits = logits.round()
    pick = {
        "temperature": [0.0, 0.5, 1.0, 2.0],
        "top_k": [0, 0, 1, 2, 50, 200],
        "top_p": [1.0, 1.0, 0.2, 0.95],
        "min_p": [0.0, 0.0, 0.1],
        "logprobs": [-1, 0, 3, 20],
        "uniform": [0.0, 0.1, 0.37, 0.5, 0.9, 0.999999, 1 - 2**-53],
    }
    values = {name: draw(st.lists(st.sampled_from(of), min_size=rows, max_size=rows)) for name, of in pick.items()}
    penalised = draw(st.sets(st.integers(0, rows - 1)))
    edits = [edit(row, prompt=[0, 1], output=[2, 2], repetition=1.5) for row in sorted(penalised)]
    return logits, columns(rows, edits=edits, **values)


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_a_row_gets_the_same_token_alone_as_in_any_batch(world):
    logits, rows = world
    together = sample(logits, rows)
    for at in range(len(logits)):
        alone = sample(logits[at : at + 1], row_of(rows, at))
        assert together.tokens[at] == alone.tokens[0]
        both = [sampled.logprobs[row] if sampled.logprobs else None for sampled, row in ((together, at), (alone, 0))]
        assert both[0] == both[1]


def test_a_real_vocabulary_gives_the_same_tokens_in_a_large_batch():
    logits = random_logits(40, 32_001)
    kinds = np.arange(40) % 4
    rows = columns(
        40,
        temperature=0.9,
        top_k=np.where(kinds == 1, 40, 0),
        top_p=np.where(kinds == 2, 0.9, np.where(kinds == 3, 0.9999, 1.0)),
    )
    together = sample(logits, rows).tokens
    alone = [sample(logits[at : at + 1], row_of(rows, at)).tokens[0] for at in range(40)]
    assert together.tolist() == alone
    assert len(set(alone)) > 20


def test_the_callers_logits_stay_as_they_are():
    logits = random_logits(4, 300)
    before = logits.clone()
    rows = columns(4, top_k=[0, 5, 0, 0], top_p=[1.0, 1.0, 0.5, 1.0], min_p=[0, 0, 0, 0.1], logprobs=2)
    sample(logits, rows)
    sample(logits, columns(4, edits=[edit(1, output=[1], presence=1.0, bias={3: 5.0}, banned=[2])]))
    assert torch.equal(logits, before)


def test_greedy_rows_take_the_first_of_the_largest():
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 5.0], [1.0, 1.0, 3.0]])
    assert sample(logits, columns(3, temperature=0.0)).tokens.tolist() == [1, 0, 2]
    assert sample(logits, columns(3, top_k=1, uniform=0.99)).tokens.tolist() == [1, 0, 2]


def test_a_row_without_a_possible_token_fails_alone():
    logits = random_logits(5, 50)
    logits[0, 7] = torch.nan
    logits[1] = -torch.inf
    logits[2, 3] = torch.inf
    for temperature in (0.0, 1.0):
        sampled = sample(logits, columns(5, temperature=temperature, logprobs=1))
        assert sampled.failed.tolist() == [True, True, True, False, False]
        assert sampled.tokens[:3].tolist() == [0, 0, 0]
        assert [found is None for found in sampled.logprobs] == [True, True, True, False, False]
    banned = [edit(3, banned=range(50))]
    assert sample(logits, columns(5, edits=banned)).failed.tolist() == [True, True, True, True, False]


def test_no_logprobs_when_nobody_asks():
    assert sample(random_logits(2, 10), columns(2)).logprobs is None


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logprobs_are_the_models_own(temperature):
    """Before penalties, bias and temperature; only where asked for, as many as asked for."""
    logits = random_logits(4, 200)
    edits = [edit(row, bias={row: 100.0}) for row in range(4)]
    sampled = sample(logits, columns(4, temperature=temperature, logprobs=[-1, 0, 5, 20], edits=edits))
    assert sampled.tokens.tolist() == [0, 1, 2, 3]
    expected = torch.log_softmax(logits.double(), -1)
    assert sampled.logprobs[0] is None
    for row, count in ((1, 0), (2, 5), (3, 20)):
        found = sampled.logprobs[row]
        top = expected[row].topk(count)
        assert found.logprob == pytest.approx(expected[row, row].item(), abs=1e-5)
        assert found.top_ids == top.indices.tolist()
        assert found.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-5)


def test_equally_likely_alternatives_come_by_id():
    logits = torch.zeros(3, 400)
    logits[1, 300] = 1.0
    logits[2, [9, 4]] = 2.0
    found = sample(logits, columns(3, temperature=0.0, logprobs=[3, 3, 2])).logprobs
    assert [logprobs.top_ids for logprobs in found] == [[0, 1, 2], [300, 0, 1], [4, 9]]


def test_more_alternatives_than_tokens_and_impossible_ones_can_be_written_as_json():
    logits = torch.tensor([[0.0, -torch.inf, 1.0]])
    found = sample(logits, columns(1, temperature=0.0, logprobs=20)).logprobs[0]
    assert found.top_ids == [2, 0, 1]
    assert np.isfinite(found.top_logprobs).all()
