"""Token counts: means, spreads, limits, and correlation kept from a trace."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import TrafficError
from loadgen.tokens import FromTrace, Independent, LogNormal, Quantiles, TokenCounts


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_log_normal_has_its_mean_and_cv(cv):
    counts = LogNormal(500, cv).draw(400_000, rng())
    assert counts.dtype == np.int32
    assert counts.mean() == pytest.approx(500, rel=0.02)
    assert counts.std() / counts.mean() == pytest.approx(cv, rel=0.05)


def test_log_normal_without_spread_is_constant():
    assert LogNormal(128).draw(5, rng()).tolist() == [128] * 5


@settings(deadline=None)
@given(mean=st.floats(0.1, 1e6), cv=st.floats(0, 100), low=st.integers(0, 50), span=st.integers(0, 1000))
def test_log_normal_stays_within_its_limits(mean, cv, low, span):
    counts = LogNormal(mean, cv, low, low + span).draw(50, rng())
    assert ((counts >= low) & (counts <= low + span)).all()


def test_quantiles_are_met():
    model = Quantiles((0.1, 0.5, 0.9), (10, 100, 4000))
    counts = model.draw(100_000, rng())
    assert np.quantile(counts, [0.15, 0.5, 0.85]) == pytest.approx(
        [10 * 10 ** (1 / 8), 100, 100 * 40 ** (7 / 8)], rel=0.05
    )
    assert (counts.min(), counts.max()) == (10, 4000)


def test_trace_draws_keep_pairs_together():
    trace = TokenCounts(np.array([10, 20, 30], dtype=np.int32), np.array([1, 2, 3], dtype=np.int32))
    drawn = FromTrace(trace).draw(3000, rng())
    assert np.array_equal(drawn.prompt, 10 * drawn.output)
    assert np.bincount(drawn.output)[1:] == pytest.approx([1000] * 3, abs=130)


def test_independent_sides_are_uncorrelated():
    drawn = Independent(LogNormal(100, 1), LogNormal(100, 1)).draw(50_000, rng())
    assert abs(np.corrcoef(drawn.prompt, drawn.output)[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: LogNormal(0), "mean"),
        (lambda: LogNormal(math.nan), "mean"),
        (lambda: LogNormal(5, -1), "cv"),
        (lambda: LogNormal(5, 1, 10, 9), "max"),
        (lambda: LogNormal(5, 1, -1), "min"),
        (lambda: Quantiles((0.1,), ()), "quantiles"),
        (lambda: Quantiles((0.5, 0.1), (1, 2)), "quantiles"),
        (lambda: Quantiles((0.1, 0.5), (2, 1)), "quantiles"),
        (lambda: FromTrace(TokenCounts.none(0)), "tokens"),
    ],
)
def test_bad_parameters_are_named_in_one_line(make, field):
    with pytest.raises(TrafficError, match=f"^{field}.*give.*$") as caught:
        make()
    assert "\n" not in str(caught.value)
