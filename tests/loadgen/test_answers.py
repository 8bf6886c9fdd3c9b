"""Answers as they come off the socket, in whatever pieces, become records."""

import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.results.record import Record
from loadgen.target.answers import Reading

PIECES = [{"choices": [{"text": f"w{n}"}]} for n in range(3)]
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def events(*answers, end=b"\n\n", done=True):
    body = b"".join(b"data: " + msgspec.json.encode(answer) + end for answer in answers)
    return body + (b"data: [DONE]" + end if done else b"")


def read(body, cuts=(), status=200, kind="text/event-stream; charset=utf-8"):
    """Fed in pieces that end at `cuts`, a second apart."""
    record = Record(row=0, model=0, stage=0, due_s=0.0, sent_s=0.0)
    reading = Reading(record)
    reading.begin(status, kind)
    edges = [0, *sorted({cut for cut in cuts if cut < len(body)}), len(body)]
    for now, (begin, end) in enumerate(pairwise(edges)):
        reading.feed(body[begin:end], float(now))
    reading.end(float(len(edges)))
    return record


@given(cuts=st.lists(st.integers(1, 250), max_size=8), end=st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_however_the_bytes_are_cut(cuts, end):
    record = read(events(*PIECES, USAGE, end=end), cuts)
    assert record.reason == ""
    assert (record.prompt_tokens, record.output_tokens) == (7, 3)
    assert record.first_s <= record.last_s <= record.done_s
    assert len(record.gaps_s) == 2
    assert sum(record.gaps_s) == pytest.approx(record.last_s - record.first_s)


def test_times_of_tokens_are_those_of_their_bytes():
    bodies = [events(piece, done=False) for piece in PIECES]
    body = b"".join(bodies) + events(USAGE)
    record = read(body, [len(bodies[0]), len(bodies[0] + bodies[1])])
    assert (record.first_s, record.last_s) == (0.0, 2.0)
    assert record.tpot_s == 1.0
    assert list(record.gaps_s) == [1.0, 1.0]


def test_chat_deltas_and_answers_without_usage():
    role = {"choices": [{"delta": {"role": "assistant"}}]}
    words = [{"choices": [{"delta": {"content": "hi"}}]}] * 2
    record = read(events(role, *words))
    assert record.output_tokens == 2
    assert len(record.gaps_s) == 1


def test_an_answer_of_nothing_but_special_tokens_still_has_a_first():
    record = read(events({"choices": [{"text": ""}]}, USAGE))
    assert record.reason == ""
    assert record.first_s == record.done_s


def test_streams_that_break_off_or_tell_an_error():
    assert read(events(PIECES[0], done=False)).reason == "cut-off"
    expired = {"error": {"message": "late", "type": "rate_limit_error", "param": None, "code": "expired"}}
    record = read(events(PIECES[0], expired, done=False))
    assert record.reason == "expired"
    assert record.is_refused
    assert math.isnan(record.latency_s)
    assert read(b"data: {not json\n\n").reason == "not-understood"


@pytest.mark.parametrize(
    ("status", "body", "reason", "refused"),
    [
        (429, b'{"error": {"message": "", "type": "t", "param": null, "code": "queue-full"}}', "queue-full", True),
        (503, b'{"error": {"message": "", "type": "t", "code": "no-replica"}}', "no-replica", True),
        (503, b'{"error": {"message": "", "type": "t", "code": "failed"}}', "failed", False),
        (503, b'{"error": {"message": "", "type": "t", "code": "overloaded"}}', "overloaded", True),
        (503, b"", "http-503", True),
        (429, b"busy", "http-429", True),
        (500, b'{"error": {"message": "", "type": "server_error", "code": null}}', "server_error", False),
        (502, b"<html>", "http-502", False),
        (200, b"{", "not-understood", False),
        (200, b'{"data": [], "usage": {"prompt_tokens": 5, "total_tokens": 5}}', "", False),
    ],
)
def test_whole_answers(status, body, reason, refused):
    record = read(body, status=status, kind="application/json")
    assert (record.reason, record.is_refused) == (reason, refused)
    if not reason:
        assert record.prompt_tokens == 5
        assert record.latency_s == record.done_s
