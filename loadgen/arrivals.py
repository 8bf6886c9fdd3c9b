"""Renewal processes: arrival times in [0, duration) of one model with steady traffic.

Every process starts in equilibrium: time 0 falls anywhere inside a gap, so the expected number of arrivals in
any stretch is rate x length whatever the cv. Gaps are rounded to whole nanoseconds before they are summed:
the sum is exact, and last-digit differences between math libraries vanish instead of adding up.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loadgen import checks
from loadgen.errors import TrafficError

Times = NDArray[np.float64]

NS_PER_S = 1e9
_CHUNK = 1 << 20
# A draw this unlikely to hold an arrival is empty; spares gaps too long for a float.
_NEVER = 1e-12
_ALMOST_REGULAR = 1e12


def poisson_arrivals(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Independent arrivals."""
    return gamma_arrivals(rate_per_s, 1.0, duration_s, rng)


def gamma_arrivals(rate_per_s: float, cv: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Gaps ~ Gamma with mean 1/rate and the given coefficient of variation.

    The draws behind the gaps do not depend on rate and duration: doubling the rate halves every time, and a
    longer duration only adds arrivals at the end.
    """
    shape = min(1 / checks.cv(cv) ** 2, _ALMOST_REGULAR)

    def first() -> float:
        return float(rng.standard_gamma(shape + 1) * rng.random()) / shape

    def gaps(count: int) -> Times:
        return rng.standard_gamma(shape, count) / shape

    return _renewal(rate_per_s, duration_s, first, gaps)


def weibull_arrivals(rate_per_s: float, cv: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Gaps ~ Weibull with mean 1/rate and the given coefficient of variation."""
    shape = weibull_shape(cv)
    mean = math.gamma(1 + 1 / shape)

    def first() -> float:
        # Length-biased Weibull: its power `shape` is Gamma(1 + 1/shape).
        return float(rng.standard_gamma(1 + 1 / shape) ** (1 / shape) * rng.random()) / mean

    def gaps(count: int) -> Times:
        return rng.weibull(shape, count) / mean

    return _renewal(rate_per_s, duration_s, first, gaps)


def weibull_shape(cv: float) -> float:
    """The shape whose Weibull has this cv, by bisection: cv falls as the shape grows."""
    wanted = math.log1p(checks.cv(cv) ** 2)
    low, high = 0.05, 1e4
    for _ in range(60):
        shape = math.sqrt(low * high)
        if math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape) > wanted:
            low = shape
        else:
            high = shape
    return round(low, 9)  # the digits after that differ between math libraries


def whole_ns(times_s: Times, duration_s: float) -> Times:
    """Ascending times rounded to whole nanoseconds, those that reach `duration_s` left out."""
    # Where two stretches meet, the last digit of a sum may step back.
    rounded = np.maximum.accumulate(np.rint(times_s * NS_PER_S) / NS_PER_S)
    return rounded[: np.searchsorted(rounded, duration_s, side="left")]


def _renewal(rate_per_s: float, duration_s: float, first: Callable[[], float], gaps: Callable[[int], Times]) -> Times:
    """Sum gaps (given in units of the mean gap) from the first one until the duration is reached."""
    rate = checks.rate(rate_per_s)
    duration = checks.duration(duration_s)
    expected = rate * duration
    checks.not_absurd(expected, "rate x duration")
    if expected < _NEVER:
        return np.empty(0)
    ns_per_gap = NS_PER_S / rate
    limit_ns = duration * NS_PER_S
    clock_ns = float(round(first() * ns_per_gap))
    parts = [np.array([clock_ns], dtype=np.float64)]
    drawn = 1
    while clock_ns < limit_ns:
        count = min(int(expected * 1.05) + 32, _CHUNK)
        steps = np.rint(gaps(count) * ns_per_gap)
        steps[0] += clock_ns
        parts.append(np.cumsum(steps))
        clock_ns = float(parts[-1][-1])
        drawn += count
        if drawn > 2 * checks.MAX_REQUESTS + _CHUNK:
            raise TrafficError(f"cv: this draw holds over {2 * checks.MAX_REQUESTS:,} requests; lower rate or cv")
    times = np.concatenate(parts) / NS_PER_S
    return times[: np.searchsorted(times, duration, side="left")]
