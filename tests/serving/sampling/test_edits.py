"""Penalties, biases and bans: against transformers, and against numbers worked out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from serving.sampling.edits import apply_edits
from tests.serving.sampling.columns import edit

IDS = st.lists(st.integers(0, 19), max_size=30)


@settings(deadline=None)
@given(IDS, IDS, st.floats(0.1, 3), st.integers(0, 2**31))
def test_repetition_counts_prompt_and_output_as_transformers_does(prompt, output, penalty, seed):
    logits = torch.randn(1, 20, generator=torch.Generator().manual_seed(seed))
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output], dtype=torch.int64), logits)
    edited = apply_edits(logits, [edit(0, prompt, output, repetition=penalty)])
    assert torch.allclose(edited, expected, rtol=1e-6)


@settings(deadline=None)
@given(IDS, IDS, st.floats(-2, 2), st.floats(-2, 2))
def test_presence_and_frequency_count_the_output_alone(prompt, output, presence, frequency):
    logits = torch.zeros(1, 20)
    edited = apply_edits(logits, [edit(0, prompt, output, presence=presence, frequency=frequency)])[0]
    times = np.bincount(np.array(output, np.int64), minlength=20)
    assert edited.tolist() == pytest.approx((-frequency * times - presence * (times > 0)).tolist(), abs=1e-5)


def test_edits_come_in_their_order_and_touch_their_row_alone():
    logits = torch.tensor([[4.0, -4.0, 1.0], [4.0, -4.0, 1.0]])
    change = edit(1, prompt=[0], output=[1, 1], repetition=2.0, presence=0.5, frequency=0.25, bias={0: 3.0}, banned=[2])
    edited = apply_edits(logits, [change])
    assert edited[0].tolist() == [4.0, -4.0, 1.0]
    assert edited[1].tolist() == [4 / 2 + 3, -4 * 2 - 0.5 - 2 * 0.25, -torch.inf]


def test_without_edits_nothing_is_copied():
    logits = torch.zeros(2, 3)
    assert apply_edits(logits, ()) is logits
