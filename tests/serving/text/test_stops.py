"""Stop strings: the same cut however the text comes, and nothing kept back that need not be."""

from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import InputError
from serving.text.stops import StopStrings

# Two letters make overlaps and near misses likely.
TEXT = st.text("ab", max_size=40)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def cut(text, stops, include):
    """By trying every end: the text shown and the stop string."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


@st.composite
def pieces(draw):
    text = draw(TEXT)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@settings(max_examples=250, deadline=None)
@given(pieces(), STOPS, st.booleans())
def test_the_text_is_cut_at_the_first_stop_string_however_it_comes(parts, stops, include):
    matcher = StopStrings(stops, include=include)
    shown = "".join(matcher.push(part) for part in parts) + matcher.finish()
    assert (shown, matcher.stopped) == cut("".join(parts), stops, include)


@settings(max_examples=150, deadline=None)
@given(TEXT, STOPS)
def test_only_what_can_begin_a_stop_string_is_kept_back(text, stops):
    matcher = StopStrings(stops)
    shown = matcher.push(text)
    if matcher.stopped is None:
        kept = text[len(shown) :]
        beginnings = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
        assert len(kept) == max(beginnings, default=0)


def test_nothing_comes_after_a_stop():
    matcher = StopStrings(["\n\n"])
    assert matcher.push("one\n") == "one"
    assert matcher.push("\ntwo") == ""
    assert matcher.stopped == "\n\n"
    assert matcher.push("three") == ""
    assert matcher.finish() == ""


@pytest.mark.parametrize("stops", [[""], ["a"] * 17, ["x" * 1025]])
def test_unreasonable_stop_strings_are_refused(stops):
    with pytest.raises(InputError, match=r"^stop: "):
        StopStrings(stops)


def test_the_longest_stop_strings_stay_cheap():
    matcher = StopStrings(["a" * 1023 + letter for letter in "bcdefghijklmnopq"])
    start = thread_time()
    for _ in range(200):
        matcher.push("aaac" + "a" * 50)
    assert thread_time() - start < 2
