"""The search for the largest rate held, against servers that hold a known one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import NoRequestsError
from loadgen.max_rate import PRECISION, Judged, find_max_rate
from loadgen.report.text import max_rate_text


@given(limit=st.floats(1, 10_000), start=st.floats(0.5, 4000))
def test_it_ends_just_below_the_limit(limit, start):
    found = find_max_rate(lambda rate: Judged(1.0 if rate <= limit else 0.5, True), start, 0.99)
    assert found.limited_by == "server"
    assert limit / (1 + PRECISION) <= found.rate <= limit


def test_none_is_held():
    found = find_max_rate(lambda rate: Judged(0.0, True), 100.0, 0.99)
    assert found.rate is None
    assert not any(probe.held for probe in found.probes)


def test_it_goes_no_lower_than_the_least_rate():
    tried = []

    def probe(rate):
        tried.append(rate)
        return Judged(0.0, True)

    found = find_max_rate(probe, 100.0, 0.99, 10.0)
    assert tried == [100.0, 50.0, 25.0, 12.5, 10.0]
    assert max_rate_text(found).endswith("none; not even 10/s, the least tried, was held")


def test_probes_without_a_request_end_it_and_lose_nothing():
    def probe(rate):
        if rate < 20:
            raise NoRequestsError("none")
        return Judged(0.0, True)

    assert [one.rate for one in find_max_rate(probe, 100.0, 0.99).probes] == [100.0, 50.0, 25.0]
    with pytest.raises(NoRequestsError):
        find_max_rate(probe, 10.0, 0.99)


def test_an_interrupt_keeps_what_was_found():
    found = find_max_rate(lambda rate: None if rate > 300 else Judged(1.0, True), 100.0, 0.99)
    assert (found.rate, found.limited_by) == (200.0, "interrupt")
    assert "200/s (so far: the search was interrupted)" in max_rate_text(found)


def test_a_generator_that_cannot_keep_up_is_named():
    found = find_max_rate(lambda rate: Judged(1.0, rate <= 700), 100.0, 0.99)
    assert found.limited_by == "generator"
    assert found.rate == pytest.approx(700, rel=PRECISION)


def test_one_bad_run_by_chance_is_repeated():
    runs = []

    def probe(rate):
        runs.append(rate)
        return Judged(1.0 if rate <= 300 else 0.0, valid=runs.count(rate) != 1)

    assert find_max_rate(probe, 100.0, 0.99).rate == pytest.approx(300, rel=PRECISION)
