"""Replay of a recorded trace: the same at scale 1 without resampling, scaled per window with it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import gamma_arrivals
from loadgen.errors import TrafficError
from loadgen.replay import replay, window_stats


def rng(seed=0):
    return np.random.default_rng(seed)


def two_speeds():
    """100/s for 60 s, then 20/s for 60 s, over and over: 50 minutes, cv 2."""
    generator = rng(9)
    parts = [60 * i + gamma_arrivals((100.0, 20.0)[i % 2], 2.0, 60.0, generator) for i in range(50)]
    return np.concatenate(parts)


TRACE = two_speeds()


def window_counts(times):
    return np.histogram(times, np.arange(0, 3001, 60.0))[0]


def median_cv(times):
    return float(np.median(window_stats(times, 3000.0, 60.0).cv))


def test_without_resampling_it_is_the_trace_itself():
    same = replay(TRACE, 3000.0, rng(), resample=False)
    assert np.array_equal(same.arrival_s, TRACE)
    assert np.array_equal(same.row, np.arange(TRACE.size))
    cut = replay(TRACE, 100.0, rng(), resample=False)
    assert np.array_equal(cut.arrival_s, TRACE[TRACE < 100])


@pytest.mark.parametrize(("rate_scale", "cv_scale"), [(1.0, 1.0), (3.0, 1.0), (1.0, 2.0), (0.5, 0.25)])
def test_rate_and_cv_scale_in_every_window(rate_scale, cv_scale):
    runs = [replay(TRACE, 3000.0, rng(seed), rate_scale=rate_scale, cv_scale=cv_scale).arrival_s for seed in range(8)]
    counts = np.mean([window_counts(run) for run in runs], axis=0) / rate_scale
    original = window_counts(TRACE)
    assert counts.sum() == pytest.approx(original.sum(), rel=0.04)
    # The fast and the slow minutes stay where they were.
    assert counts[::2].sum() == pytest.approx(original[::2].sum(), rel=0.05)
    assert counts[1::2].sum() == pytest.approx(original[1::2].sum(), rel=0.1)
    cv = np.mean([median_cv(run) for run in runs])
    assert cv == pytest.approx(cv_scale * median_cv(TRACE), rel=0.1)


def test_rows_come_from_the_window_of_the_arrival():
    again = replay(TRACE, 3000.0, rng(), rate_scale=2.0)
    assert np.array_equal(TRACE[again.row] // 60, again.arrival_s // 60)
    assert np.unique(again.row).size > 0.7 * TRACE.size


def test_empty_windows_stay_empty_and_single_requests_stay_single():
    trace = np.array([5.0, 130.0])
    counts = np.mean([window_counts(replay(trace, 3000.0, rng(s)).arrival_s) for s in range(800)], axis=0)
    assert counts[[0, 2]] == pytest.approx([1, 1], abs=0.2)
    assert counts.sum() == counts[[0, 2]].sum()


def test_simultaneous_and_regular_arrivals_have_a_cv():
    assert window_stats(np.full(9, 3.0), 60.0, 60.0).cv.tolist() == [1.0]
    assert window_stats(np.arange(60.0), 60.0, 60.0).cv.tolist() == [0.0]
    assert np.diff(replay(np.arange(60.0), 60.0, rng()).arrival_s) == pytest.approx(1, abs=0.1)
    assert replay(np.full(9, 3.0), 60.0, rng()).arrival_s.size > 0


def test_windows_with_few_gaps_share_one_unbiased_cv():
    trace = gamma_arrivals(0.05, 1.0, 600_000.0, rng(1))  # three requests a window
    stats = window_stats(trace, 600_000.0, 60.0)
    few = stats.cv[stats.count < 4]
    assert few.min() == few.max() == pytest.approx(0.8, abs=0.1)  # gaps longer than the window are not seen


def test_short_last_window_joins_the_one_before():
    stats = window_stats(np.array([1.0, 60.0]), 60.0 + 1e-9, 60.0)
    assert stats.edge_s.tolist() == [0.0, 60.0 + 1e-9]
    assert stats.count.tolist() == [2]


@settings(deadline=None, max_examples=40)
@given(
    trace=st.lists(st.floats(0, 50), max_size=60).map(sorted),
    duration=st.floats(1, 60),
    window=st.floats(0.5, 70),
    seed=st.integers(0, 99),
)
def test_times_are_sorted_inside_and_the_same_for_the_same_seed(trace, duration, window, seed):
    times = np.array(trace, dtype=np.float64)
    again = replay(times, duration, rng(seed), window_s=window)
    assert (np.diff(again.arrival_s) >= 0).all()
    assert ((again.arrival_s >= 0) & (again.arrival_s < duration)).all()
    assert again.row.size == again.arrival_s.size
    assert (times[again.row] < duration).all()
    assert np.array_equal(again.arrival_s, replay(times, duration, rng(seed), window_s=window).arrival_s)


@pytest.mark.parametrize(
    ("trace", "change", "message"),
    [
        ([2.0, 1.0], {}, "^trace: .*sort"),
        ([-1.0, 1.0], {}, "^trace: .*sort"),
        ([math.nan, 1.0], {}, "^trace: .*finite"),
        ([1.0], {"window_s": 0.0}, "^window: "),
        ([1.0], {"window_s": 1e-9}, "^window: .*too short"),
        ([1.0], {"rate_scale": -1.0}, "^rate_scale: "),
        ([1.0], {"cv_scale": 0.0}, "^cv_scale: "),
        ([1.0], {"duration_s": 0.0}, "^duration: "),
        ([1.0], {"resample": False, "rate_scale": 2.0}, "^resample: "),
        (np.arange(100.0), {"rate_scale": 1e6}, "^rate_scale: .*requests expected"),
    ],
)
def test_bad_parameters_are_named_in_one_line(trace, change, message):
    arguments = {"duration_s": 10.0, "rng": rng()} | change
    with pytest.raises(TrafficError, match=message) as caught:
        replay(np.asarray(trace), **arguments)
    assert "\n" not in str(caught.value)
