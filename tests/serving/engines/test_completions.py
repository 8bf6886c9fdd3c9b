"""What OpenAI's events become, however the network cuts them, and what is asked of a server."""

import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.outputs import Produced, Refused
from serving.engines.completions import CompletionStream, completion_body
from serving.sampling import SamplingParams, TokenLogprobs

PARAMS = SamplingParams(max_tokens=8)


def event(**choice):
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": "", **choice}]}).encode() + b"\n\n"


def produced(data, params=PARAMS, cuts=(), status=200):
    found = []
    stream = CompletionStream("r", params, found.append)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for begin, end in pairwise(places):
        stream.feed(data[begin:end])
    stream.conclude(status)
    return found


TOKENS = event(token_ids=[5]) + event(token_ids=[6, 7], finish_reason="length") + b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, len(TOKENS)), max_size=6))
def test_tokens_come_whole_wherever_the_network_cuts(cuts):
    assert produced(TOKENS, cuts=cuts) == [
        Produced("r", 0, 5),
        Produced("r", 0, 6),
        Produced("r", 0, 7, "length"),
    ]


def test_text_of_servers_without_token_ids():
    data = event(text="a b") + event(text=" c", finish_reason="stop")
    assert produced(data) == [
        Produced("r", 0, None, text="a b"),
        Produced("r", 0, None, "stop", text=" c"),
    ]


def test_log_probabilities_by_token_id():
    said = {
        "tokens": ["token_id:5"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"token_id:7": -2.0, "token_id:5": -0.5}],
    }
    [one] = produced(event(token_ids=[5], logprobs=said, finish_reason="stop"))
    assert one.logprobs == TokenLogprobs(-0.5, [5, 7], [-0.5, -2.0])


@pytest.mark.parametrize(
    ("data", "status", "code", "words"),
    [
        (event(token_ids=[5]), 200, "failed", "before it was complete"),
        (b'{"error": {"message": "too long"}}', 400, "invalid", "400: too long"),
        (b"oh dear", 502, "failed", "502: oh dear"),
        (b'data: {"error": {"message": "its worker died"}}\n\n', 200, "failed", "its worker died"),
        (b'data: {"error": "its worker died"}\n\n', 200, "failed", "its worker died"),
        (b'{"error": "overloaded"}', 503, "failed", "the engine answers 503: overloaded"),
    ],
)
def test_what_is_no_answer_is_told(data, status, code, words):
    last = produced(data, status=status)[-1]
    assert isinstance(last, Refused)
    assert last.code == code
    assert words in last.reason


def test_an_event_without_end_is_refused():
    with pytest.raises(ValueError, match="an event of over"):
        produced(b"data: " + b"x" * 5 * 2**20)


def test_only_what_a_request_wishes_is_asked():
    plain = msgspec.json.decode(completion_body("m", [1, 2], PARAMS))
    assert not {"top_k", "min_p", "seed", "logit_bias", "ignore_eos", "n"} & set(plain)
    assert plain["prompt"] == [1, 2]
    params = SamplingParams(max_tokens=4, top_k=3, seed=7, n=2, logit_bias={5: 1.0}, ignore_eos=True, logprobs=2)
    asked = msgspec.json.decode(completion_body("m", "text", params))
    assert asked["logit_bias"] == {"5": 1.0}
    assert (asked["top_k"], asked["seed"], asked["n"], asked["ignore_eos"], asked["logprobs"]) == (3, 7, 2, True, 2)
