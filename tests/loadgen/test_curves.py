"""Laws of traffic whose rate changes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.curves import burst_arrivals, day_arrivals, on_off_arrivals
from loadgen.errors import TrafficError


def rng(seed=0):
    return np.random.default_rng(seed)


def on_off(rate, cv, duration, generator, **changes):
    return on_off_arrivals(rate, cv, duration, generator, **{"mean_on_s": 2.0, "mean_off_s": 6.0} | changes)


def bursts(rate, cv, duration, generator, **changes):
    return burst_arrivals(rate, cv, duration, generator, **{"window_s": 3.0, "p_on": 0.2} | changes)


def day(rate, cv, duration, generator, **changes):
    return day_arrivals(rate, cv, duration, generator, **{"period_s": 50.0, "amplitude": 0.6} | changes)


PROCESSES = [on_off, bursts, day]


@pytest.mark.parametrize("draw", PROCESSES)
@pytest.mark.parametrize("cv", [0.5, 3.0])
def test_long_run_has_the_rate_asked_for(draw, cv):
    times = draw(10.0, cv, 25_000.0, rng())
    assert times.size == pytest.approx(250_000, rel=0.06)


@pytest.mark.parametrize("draw", [on_off, bursts])
@pytest.mark.parametrize("off_level", [0.0, 0.3])
def test_first_second_expects_the_rate(draw, off_level):
    generator = rng(1)
    counts = np.array([draw(8.0, 2.0, 1.0, generator, off_level=off_level).size for _ in range(1200)])
    error = counts.std() / math.sqrt(counts.size)
    assert error < 1
    assert counts.mean() == pytest.approx(8, abs=4 * error)


def test_mmpp_counts_are_as_dispersed_as_theory_says():
    # Interrupted Poisson: var/mean of counts exceeds 1 by 2 r_on p_off / (a + b) over long stretches.
    on, off, rate, stretch = 2.0, 6.0, 4.0, 400.0
    counts = np.histogram(on_off(rate, 1.0, 400_000.0, rng(2)), np.arange(0, 400_001, stretch))[0]
    leave_on, leave_off = 1 / on, 1 / off
    share_on = on / (on + off)
    relaxation = leave_on + leave_off
    excess = 2 * (rate / share_on) * (1 - share_on) / relaxation
    correction = 1 - (1 - math.exp(-relaxation * stretch)) / (relaxation * stretch)
    assert counts.var() / counts.mean() == pytest.approx(1 + excess * correction, rel=0.12)


def test_off_is_silent_and_off_level_is_heard():
    times = bursts(10.0, 1.0, 30_000.0, rng(3))
    counts = np.histogram(times, np.arange(0, 30_001, 3.0))[0]
    assert (counts == 0).mean() == pytest.approx(0.8, abs=0.02)
    loud = bursts(10.0, 1.0, 30_000.0, rng(3), off_level=0.5)
    counts = np.histogram(loud, np.arange(0, 30_001, 3.0))[0]
    quiet = np.median(counts) / 3
    assert quiet == pytest.approx(10 * 0.5 / (0.2 + 0.8 * 0.5), rel=0.05)


def test_bursts_are_pareto_up_to_the_cap():
    times = bursts(500.0, 0.1, 4000.0, rng(4), pareto=1.5, cap=6.0, window_s=2.0)
    counts = np.histogram(times, np.arange(0, 4001, 2.0))[0]
    size = counts[counts > 0] / counts[counts > 0].min()
    assert size.max() == pytest.approx(6, rel=0.05)
    assert (size > 2).mean() == pytest.approx(2**-1.5, abs=0.06)


def test_day_curve_follows_the_sine_and_keeps_the_cv():
    times = day(100.0, 3.0, 20_000.0, rng(5), phase=1.0)
    phase_of = np.histogram(np.mod(times, 50.0), np.arange(0, 51, 5.0))[0] / (400 * 5)
    middle = np.arange(2.5, 50, 5.0)
    # Averages over tenths of a period flatten the sine by 1.6%.
    expected = 100 * (1 + 0.6 * 0.9836 * np.sin(2 * np.pi * middle / 50 + 1.0))
    np.testing.assert_allclose(phase_of, expected, rtol=0.06)
    gaps = np.diff(times)
    local = gaps * (1 + 0.6 * np.sin(2 * np.pi * times[:-1] / 50 + 1.0))
    assert local.std() / local.mean() == pytest.approx(3, rel=0.05)


def test_flat_day_is_the_plain_process():
    times = day(5.0, 2.0, 1000.0, rng(6), amplitude=0.0)
    gaps = np.diff(times)
    assert times.size == pytest.approx(5000, abs=4 * 2 * math.sqrt(5000))
    assert gaps.std() / gaps.mean() == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize("draw", PROCESSES)
@settings(deadline=None, max_examples=25)
@given(
    rate=st.floats(0, 50),
    cv=st.floats(0.05, 10),
    duration=st.floats(0.01, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_times_are_sorted_inside_and_the_same_for_the_same_seed(draw, rate, cv, duration, seed):
    times = draw(rate, cv, duration, rng(seed))
    assert (np.diff(times) >= 0).all()
    assert ((times >= 0) & (times < duration)).all()
    assert np.array_equal(times, draw(rate, cv, duration, rng(seed)))


@pytest.mark.parametrize("draw", PROCESSES)
@settings(deadline=None, max_examples=25)
@given(duration=st.floats(0.01, 60), seed=st.integers(0, 1000))
def test_longer_duration_only_adds(draw, duration, seed):
    times = draw(10.0, 2.0, duration, rng(seed))
    longer = draw(10.0, 2.0, 3 * duration, rng(seed))
    # The last arrival may round onto the end.
    assert abs((longer < duration).sum() - times.size) <= 1
    np.testing.assert_allclose(times, longer[: times.size], rtol=0, atol=1e-8)


@settings(deadline=None)
@given(window=st.floats(0.05, 5), count=st.integers(1, 40))
def test_bursts_cover_any_number_of_windows(window, count):
    times = bursts(30.0, 1.0, window * count, rng(), window_s=window, p_on=1.0, cap=1.0)
    assert times.size == pytest.approx(30 * window * count, abs=6 * math.sqrt(30 * window * count) + 3)


def test_full_amplitude_and_a_short_last_day_work():
    times = day(20.0, 1.0, 125.0, rng(7), amplitude=1.0, phase=-100.0)
    assert times.size == pytest.approx(2500, rel=0.25)
    assert times[-1] < 125


@pytest.mark.parametrize(
    ("draw", "change", "field"),
    [
        (on_off, {"mean_on_s": 0.0}, "mean_on"),
        (on_off, {"mean_off_s": math.nan}, "mean_off"),
        (on_off, {"off_level": 1.5}, "off_level"),
        (on_off, {"mean_on_s": 1e-9, "mean_off_s": 1e-9}, r"mean_on \+ mean_off"),
        (bursts, {"window_s": -1.0}, "window"),
        (bursts, {"window_s": 1e-9}, "window"),
        (bursts, {"p_on": 0.0}, "p_on"),
        (bursts, {"p_on": 1.1}, "p_on"),
        (bursts, {"pareto": 0.0}, "pareto"),
        (bursts, {"cap": 0.5}, "cap"),
        (day, {"period_s": 0.0}, "period"),
        (day, {"amplitude": 1.01}, "amplitude"),
        (day, {"amplitude": -0.1}, "amplitude"),
        (day, {"phase": math.inf}, "phase"),
    ],
)
def test_bad_parameters_are_named_in_one_line(draw, change, field):
    with pytest.raises(TrafficError, match=f"^{field}: .*give .*$") as caught:
        draw(1.0, 1.0, 10.0, rng(), **change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("draw", PROCESSES)
def test_rate_cv_and_size_are_checked(draw):
    for arguments, field in (
        ((-1.0, 1.0, 9.0), "rate"),
        ((1.0, 0.0, 9.0), "cv"),
        ((1.0, 1.0, 0.0), "duration"),
    ):
        with pytest.raises(TrafficError, match=f"^{field}: "):
            draw(*arguments, rng())
    with pytest.raises(TrafficError, match="requests expected"):
        draw(1e7, 1.0, 1e4, rng())
