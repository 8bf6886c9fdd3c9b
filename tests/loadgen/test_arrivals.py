"""Laws of the steady arrival processes: rate, cv, equilibrium, and what a seed promises."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.arrivals import gamma_arrivals, poisson_arrivals, weibull_arrivals, weibull_shape
from loadgen.errors import TrafficError

RATES = st.floats(0.01, 50)
CVS = st.floats(0.05, 20)
DURATIONS = st.floats(0.1, 60)
SEEDS = st.integers(0, 2**32 - 1)


def rng(seed=0):
    return np.random.default_rng(seed)


def cv_of(times):
    gaps = np.diff(times)
    return gaps.std() / gaps.mean()


@pytest.mark.parametrize("draw", [gamma_arrivals, weibull_arrivals])
@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 2.0, 4.0])
def test_long_run_has_the_rate_and_cv_asked_for(draw, cv):
    times = draw(200.0, cv, 2000.0, rng())
    # The count's standard deviation is about cv x sqrt(count): allow four of them.
    assert times.size == pytest.approx(400_000, abs=4 * cv * math.sqrt(400_000) + 2)
    assert cv_of(times) == pytest.approx(cv, rel=0.1 if draw is weibull_arrivals else 0.05)


def test_poisson_counts_have_the_variance_of_their_mean():
    counts = np.histogram(poisson_arrivals(5.0, 20_000.0, rng()), np.arange(20_001))[0]
    assert counts.mean() == pytest.approx(5, rel=0.03)
    assert counts.var() == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize("draw", [gamma_arrivals, weibull_arrivals])
@pytest.mark.parametrize("cv", [0.2, 1.0, 4.0, 10.0])
def test_first_second_expects_the_rate_whatever_the_cv(draw, cv):
    generator = rng(1)
    rate, draws = 10.0, 3_000
    counts = np.array([draw(rate, cv, 1.0, generator).size for _ in range(draws)])
    error = counts.std() / math.sqrt(draws)
    assert error < 0.18 * rate  # a start at an arrival would be off by several times the rate at cv 4
    assert counts.mean() == pytest.approx(rate, abs=4 * error)


def test_gamma_of_tiny_shape_keeps_its_rate_and_stays_finite():
    generator = rng(2)
    runs = [gamma_arrivals(100.0, 10.0, 200.0, generator) for _ in range(200)]  # shape 0.01
    counts = np.array([run.size for run in runs])
    assert all(np.isfinite(run).all() for run in runs)
    assert counts.mean() == pytest.approx(20_000, abs=4 * counts.std() / math.sqrt(200))
    gaps = np.concatenate([np.diff(run) for run in runs])
    assert gaps.std() / gaps.mean() == pytest.approx(10, rel=0.1)


def test_largest_cv_gives_a_sorted_finite_draw():
    times = gamma_arrivals(10.0, 1000.0, 1e5, rng(3))
    assert np.isfinite(times).all()
    assert (np.diff(times) >= 0).all()


@given(st.floats(0.011, 900))
def test_weibull_shape_gives_back_the_cv(cv):
    shape = weibull_shape(cv)
    log_ratio = math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)
    assert math.sqrt(math.expm1(log_ratio)) == pytest.approx(cv, rel=1e-5)


@pytest.mark.parametrize("draw", [gamma_arrivals, weibull_arrivals])
@settings(deadline=None, max_examples=40)
@given(rate=RATES, cv=CVS, duration=DURATIONS, seed=SEEDS)
def test_times_are_sorted_inside_and_the_same_for_the_same_seed(draw, rate, cv, duration, seed):
    times = draw(rate, cv, duration, rng(seed))
    assert times.dtype == np.float64
    assert (np.diff(times) >= 0).all()
    assert ((times >= 0) & (times < duration)).all()
    assert (times == np.rint(times * 1e9) / 1e9).all()
    assert np.array_equal(times, draw(rate, cv, duration, rng(seed)))


@settings(deadline=None, max_examples=40)
@given(rate=RATES, cv=CVS, duration=DURATIONS, seed=SEEDS)
def test_longer_duration_only_adds_and_a_higher_rate_only_squeezes(rate, cv, duration, seed):
    times = gamma_arrivals(rate, cv, duration, rng(seed))
    longer = gamma_arrivals(rate, cv, 2 * duration, rng(seed))
    assert np.array_equal(times, longer[longer < duration])
    faster = gamma_arrivals(4 * rate, cv, duration / 2, rng(seed))
    assert faster.size == pytest.approx(longer.size, abs=1)
    both = min(faster.size, longer.size)
    np.testing.assert_allclose(faster[:both] * 4, longer[:both], atol=1e-9 * (both + 1) * 4)


def test_seed_0_gives_these_times_on_every_machine():
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([0, 0])))
    assert gamma_arrivals(1.0, 2.0, 10.0, generator)[:4].tolist() == [
        0.170841638,
        0.170841936,
        4.386041287,
        5.518840626,
    ]


def test_no_rate_no_arrivals():
    assert gamma_arrivals(0.0, 3.0, 100.0, rng()).size == 0
    assert gamma_arrivals(1e-300, 3.0, 100.0, rng()).size == 0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((-1.0, 1.0, 1.0), "rate"),
        ((math.nan, 1.0, 1.0), "rate"),
        ((math.inf, 1.0, 1.0), "rate"),
        ((True, 1.0, 1.0), "rate"),
        (("2", 1.0, 1.0), "rate"),
        ((1.0, 0.0, 1.0), "cv"),
        ((1.0, -2.0, 1.0), "cv"),
        ((1.0, math.nan, 1.0), "cv"),
        ((1.0, math.inf, 1.0), "cv"),
        ((1.0, 1.0, 0.0), "duration"),
        ((1.0, 1.0, -5.0), "duration"),
        ((1.0, 1.0, math.nan), "duration"),
        ((1e6, 1.0, 51.0), "rate x duration"),
        ((10**400, 1.0, 1.0), "rate"),
    ],
)
@pytest.mark.parametrize("draw", [gamma_arrivals, weibull_arrivals])
def test_bad_parameters_are_named_in_one_line(draw, arguments, field):
    with pytest.raises(TrafficError, match=f"^{field}: .*; (give|lower) .*$") as caught:
        draw(*arguments, rng())
    assert "\n" not in str(caught.value)
