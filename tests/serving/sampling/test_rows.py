"""The columns of a step, from sequences."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from serving.sampling import SamplingParams, build_rows, uniforms
from tests.serving.sampling.columns import columns

EOS = (2, 3)


@dataclass
class Sequence:
    params: SamplingParams
    seed: int = 0
    prompt_ids: list[int] = field(default_factory=lambda: [5, 6])
    output_ids: list[int] = field(default_factory=list)


def wish(**values):
    return SamplingParams(max_tokens=8, **values)


def test_columns_hold_each_sequences_wishes_and_its_next_number():
    first = Sequence(wish(temperature=0.5, top_k=4, top_p=0.9, min_p=0.1, logprobs=3), seed=11, output_ids=[1, 2])
    rows = build_rows([first, Sequence(wish(), seed=-4)], EOS)
    assert rows.temperature.tolist() == [0.5, 1.0]
    assert rows.top_k.tolist() == [4, 0]
    assert rows.top_p.tolist() == [0.9, 1.0]
    assert rows.min_p.tolist() == [0.1, 0.0]
    assert rows.logprobs.tolist() == [3, -1]
    assert rows.uniform.tolist() == uniforms(np.array([11, -4]), np.array([2, 0])).tolist()
    assert rows.edits == ()


def test_histories_are_read_only_where_a_penalty_counts_them():
    plain = Sequence(wish())
    repeated = Sequence(wish(repetition_penalty=1.2), output_ids=[9])
    frequent = Sequence(wish(frequency_penalty=0.5), output_ids=[9, 9])
    biased = Sequence(wish(logit_bias={4: -1.0}), output_ids=[9])
    edits = build_rows([plain, repeated, frequent, biased], EOS).edits
    assert [edit.row for edit in edits] == [1, 2, 3]
    assert [edit.prompt_ids.tolist() for edit in edits] == [[5, 6], [], []]
    assert [edit.output_ids.tolist() for edit in edits] == [[9], [9, 9], []]
    assert edits[2].bias_ids.tolist() == [4]
    assert edits[2].bias.tolist() == [-1.0]


@pytest.mark.parametrize(
    ("values", "produced", "banned"),
    [
        ({"min_tokens": 2}, 1, [2, 3]),
        ({"min_tokens": 2, "stop_token_ids": (7,)}, 0, [7, 2, 3]),
        ({"min_tokens": 2, "stop_token_ids": (7,), "ignore_eos": True}, 0, [7]),
    ],
)
def test_ends_are_banned_until_there_are_enough_tokens(values, produced, banned):
    early = Sequence(wish(**values), output_ids=[8] * produced)
    late = Sequence(wish(**values), output_ids=[8] * 2)
    (edit,) = build_rows([early, late], EOS).edits
    assert edit.row == 0
    assert edit.banned_ids.tolist() == banned


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(AssertionError):
        columns(2).__class__(**{**columns(2).__dict__, "top_k": np.zeros(3, np.int64)})
