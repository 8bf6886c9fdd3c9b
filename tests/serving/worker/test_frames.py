"""Frames survive any cutting of the stream, nothing else passes for one, and signs of life are judged fairly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import InputError
from serving.worker.frames import MAX_GOODBYE_BYTES, PING, FrameError, FrameReader, Goodbye, make_frame, make_goodbye
from serving.worker.heartbeat import MOST_TICKS_AT_ONCE, Heartbeat
from serving.worker.posts import Posts
from serving.worker.settings import LinkSettings

UNHURRIED = settings(deadline=None)  # machines are busy at times


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(stream) + 1) for place in places} | {len(stream)})
    return [stream[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def read(reader, chunks):
    """What was found, and what ended it."""
    found = []
    try:
        for chunk in chunks:
            for payload in reader.feed(chunk):
                found.append(payload)  # noqa: PERF402  (those before an error count)
    except (FrameError, Goodbye) as end:
        return found, end
    return found, None


PLACES = st.lists(st.integers(0, 10**6), max_size=30)


@UNHURRIED
@given(st.lists(st.binary(max_size=300), max_size=20), PLACES)
def test_any_cut_gives_the_same_messages(payloads, places):
    reader = FrameReader(300)
    chunks = cut(b"".join(map(make_frame, payloads)), places)
    assert [found for chunk in chunks for found in reader.feed(chunk)] == [each for each in payloads if each]
    assert not reader.is_mid_frame


@UNHURRIED
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.integers(51, 2**31 - 1), PLACES)
def test_too_large_a_frame_is_refused_after_those_before_it(payloads, length, places):
    stream = b"".join(map(make_frame, payloads)) + length.to_bytes(4, "little") + b"x" * 10
    found, error = read(FrameReader(50), cut(stream, places))
    assert found == payloads
    assert str(error) == f"a frame of {length} bytes was announced; 50 is the most allowed"


@UNHURRIED
@given(st.lists(st.binary(max_size=100), max_size=20))
def test_any_bytes_give_frames_or_a_refusal_and_little_is_held(chunks):
    reader = FrameReader(64)
    for chunk in chunks:
        try:
            list(reader.feed(chunk))
        except (FrameError, Goodbye):
            return
        assert len(reader._held) < 4 + max(64, MAX_GOODBYE_BYTES)


@UNHURRIED
@given(st.text(), PLACES)
def test_a_goodbye_says_why(reason, places):
    reader = FrameReader(10)
    said = reason.encode(errors="replace")[:MAX_GOODBYE_BYTES].decode(errors="replace")
    found, goodbye = read(reader, cut(make_frame(b"x") + PING + make_goodbye(reason), places))
    assert found == [b"x"]
    assert isinstance(goodbye, Goodbye)
    assert str(goodbye) == said


def test_a_frame_of_many_small_chunks_takes_linear_time():
    reader, payload = FrameReader(2**20), b"x" * 2**20
    stream = make_frame(payload)
    found = [each for start in range(0, len(stream), 16) for each in reader.feed(stream[start : start + 16])]
    assert found == [payload]


@UNHURRIED
@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=40))
def test_late_ticks_of_ones_own_count_little(gaps):
    settings = LinkSettings(ping_s=0.5, life_s=2.0)
    beat, now = Heartbeat(settings, 0.0), 0.0
    for ticks, gap in enumerate(gaps, 1):
        now += gap
        beat.tick(now, 0, 0)
        if beat.complaint is not None:
            assert "no sign of life for 2 s" in beat.complaint
            assert ticks * MOST_TICKS_AT_ONCE * beat.tick_s >= 2.0
            assert now >= 2.0
            return
    assert sum(min(gap, MOST_TICKS_AT_ONCE * beat.tick_s) for gap in gaps) < 2.0 + 1e-9


@UNHURRIED
@given(st.lists(st.floats(0.01, 100), max_size=40))
def test_who_is_heard_between_ticks_is_alive(gaps):
    beat, now = Heartbeat(LinkSettings(), 0.0), 0.0
    for gap in gaps:
        now += gap
        beat.tick(now, 0, 0)
        assert beat.complaint is None
        beat.heard()


def test_a_ping_is_due_only_when_nothing_was_sent():
    beat = Heartbeat(LinkSettings(), 0.0)
    due = []
    for tick in range(1, 9):
        beat.tick(tick * beat.tick_s, 0, 0)
        due.append(beat.is_ping_due)
        if beat.is_ping_due or tick == 5:
            beat.sent()
    assert due == [False, True, False, True, False, False, True, False]


def test_taking_nothing_is_a_stall_and_taking_little_is_not():
    beat = Heartbeat(LinkSettings(stall_s=2), 0.0)
    for tick in range(1, 100):
        beat.tick(tick * beat.tick_s, tick, 1000)
        beat.heard()
        assert beat.complaint is None
    for tick in range(100, 108):
        assert beat.complaint is None
        beat.tick(tick * beat.tick_s, 99, 1000)
        beat.heard()
    assert "taken nothing" in str(beat.complaint)


@UNHURRIED
@given(st.lists(st.one_of(st.none(), st.integers(1, 40)), max_size=60))
def test_posts_wake_once_and_stay_bounded(steps):
    """None: the loop takes them; a number: a frame of so many bytes."""
    posts, waiting, is_over = Posts(100), [], False
    for step in steps:
        if step is None:
            assert posts.take() == waiting
            waiting = []
            continue
        frame = bytes(step)
        wakes = posts.put(frame)
        if is_over:
            assert not wakes
            continue
        is_over = sum(map(len, waiting)) + step > 100
        assert wakes == (not waiting or is_over)
        if not is_over:
            waiting.append(frame)
        assert posts.is_over == is_over


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_frame_bytes": 2**31}, "max_frame_bytes is 2147483648"),
        ({"max_frame_bytes": 0}, "give 1 to"),
        ({"max_unsent_bytes": 5}, "give at least 16777216"),
        ({"ping_s": 2.0}, "at least two pings a life"),
        ({"stall_s": 0.0}, "more than 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        LinkSettings(**wrong)
