"""What sampling accepts, and the line that says what it does not."""

import math

import msgspec
import pytest

from placement.errors import InputError
from serving.sampling import SamplingParams, validate

VOCAB = 100
MAX_LEN = 64

BAD = [
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": MAX_LEN + 1}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 17}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": 2.1}),
    ("temperature", {"temperature": math.nan}),
    ("temperature", {"temperature": math.inf}),
    ("top_k", {"top_k": -1}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.01}),
    ("top_p", {"top_p": math.nan}),
    ("min_p", {"min_p": -0.01}),
    ("min_p", {"min_p": math.nan}),
    ("seed", {"seed": 2**63}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("repetition_penalty", {"repetition_penalty": math.inf}),
    ("presence_penalty", {"presence_penalty": 2.5}),
    ("presence_penalty", {"presence_penalty": math.nan}),
    ("frequency_penalty", {"frequency_penalty": -2.5}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": -1}),
    ("n", {"n": 0}),
    ("n", {"n": 129}),
    ("stop_token_ids", {"stop_token_ids": (VOCAB,)}),
    ("stop_token_ids", {"stop_token_ids": (1,) * 257}),
    ("logit_bias", {"logit_bias": {-1: 0.0}}),
    ("logit_bias", {"logit_bias": {5: 101.0}}),
    ("logit_bias", {"logit_bias": {5: math.nan}}),
    ("logit_bias", {"logit_bias": dict.fromkeys(range(301), 0.0)}),
]


@pytest.mark.parametrize(("field", "values"), BAD)
def test_what_is_out_of_range_is_named_in_one_line(field, values):
    with pytest.raises(InputError) as refused:
        validate(SamplingParams(**{"max_tokens": 16, **values}), VOCAB, MAX_LEN)
    message = str(refused.value)
    assert message.startswith(field)
    assert "\n" not in message


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0.0, "min_p": 0.0, "top_p": 1.0, "seed": -(2**63), "n": 128},
        {"temperature": 2.0, "min_p": 1.0, "top_p": 1e-9, "seed": 2**63 - 1, "top_k": 10**9},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "logprobs": 20, "min_tokens": 16},
        {"logit_bias": {0: -100.0, VOCAB - 1: 100.0}, "stop_token_ids": (0, VOCAB - 1), "logprobs": 0},
    ],
)
def test_the_ends_of_every_range_are_accepted(values):
    validate(SamplingParams(max_tokens=16, **values), VOCAB, MAX_LEN)


def test_a_message_says_what_would_be_right():
    with pytest.raises(InputError, match=r"^temperature: 3.0 is out of range; it must be from 0 to 2$"):
        validate(SamplingParams(max_tokens=1, temperature=3.0), VOCAB, MAX_LEN)
    with pytest.raises(InputError, match=r"^min_tokens: 5 is out of range; it must be from 0 to max_tokens \(1\)$"):
        validate(SamplingParams(max_tokens=1, min_tokens=5), VOCAB, MAX_LEN)


def test_json_gives_the_same_back_and_unknown_fields_are_refused():
    params = SamplingParams(max_tokens=4, logit_bias={7: -1.5}, stop_token_ids=(2, 3), seed=5)
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    with pytest.raises(msgspec.ValidationError, match="temprature"):
        msgspec.json.decode(b'{"max_tokens": 4, "temprature": 1}', type=SamplingParams)
