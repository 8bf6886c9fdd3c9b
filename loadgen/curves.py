"""Traffic whose rate changes: on/off, bursts in windows, the curve of a day.

Each draws a rate curve, then bends the time of a unit-rate Gamma process in equilibrium through it: the gaps
keep their cv relative to the rate of the moment, and the long-run mean rate is the one asked for.
"""

import math
from dataclasses import dataclass

import numpy as np

from loadgen import checks
from loadgen.arrivals import NS_PER_S, Times, gamma_arrivals, whole_ns
from loadgen.errors import TrafficError

_STEPS_PER_PERIOD = 1024
_MAX_SEGMENTS = 10_000_000


@dataclass(frozen=True, eq=False)
class RateCurve:
    """Rate `level[i]` (1 = the mean) between `edge_s[i]` and `edge_s[i + 1]`; the first edge is 0."""

    edge_s: Times
    level: Times

    def mass(self) -> Times:
        """Integral of the level from 0 to each edge."""
        return np.concatenate([[0.0], np.cumsum(self.level * np.diff(self.edge_s))])

    def until(self, duration_s: float) -> "RateCurve":
        assert self.edge_s[-1] >= duration_s
        last = max(int(np.searchsorted(self.edge_s, duration_s, side="left")), 1)
        return RateCurve(np.append(self.edge_s[:last], duration_s), self.level[:last])


def on_off_arrivals(
    rate_per_s: float,
    cv: float,
    duration_s: float,
    rng: np.random.Generator,
    *,
    mean_on_s: float,
    mean_off_s: float,
    off_level: float = 0.0,
) -> Times:
    """Two states of exponential length (an MMPP when cv is 1), starting as in the long run.

    `off_level` is the off state's rate as a share of the on state's.
    """
    mean_on = checks.positive(mean_on_s, "mean_on", checks.MAX_DURATION_S)
    mean_off = checks.positive(mean_off_s, "mean_off", checks.MAX_DURATION_S)
    off = checks.within(off_level, "off_level", 0, 1)
    duration = checks.duration(duration_s)
    cycles = duration / (mean_on + mean_off)
    _segments_fit(2 * cycles, "mean_on + mean_off")
    state_rng, gap_rng = rng.spawn(2)
    share_on = mean_on / (mean_on + mean_off)
    starts_on = bool(state_rng.random() < share_on)
    means = np.array([mean_on, mean_off] if starts_on else [mean_off, mean_on])
    edge_ns = np.zeros(1)
    while edge_ns[-1] < duration * NS_PER_S:
        draws = state_rng.standard_exponential((int(cycles) + 16, 2)) * means
        edge_ns = np.append(edge_ns, edge_ns[-1] + np.cumsum(np.rint(draws.ravel() * NS_PER_S)))
    high = 1 / (share_on + (1 - share_on) * off)
    level = np.full(edge_ns.size - 1, high)
    level[1 if starts_on else 0 :: 2] = high * off
    curve = RateCurve(edge_ns / NS_PER_S, level).until(duration)
    return along(curve, rate_per_s, cv, gap_rng)


def burst_arrivals(
    rate_per_s: float,
    cv: float,
    duration_s: float,
    rng: np.random.Generator,
    *,
    window_s: float,
    p_on: float,
    pareto: float = 1.5,
    cap: float = 6.0,
    off_level: float = 0.0,
) -> Times:
    """Each window is on with probability `p_on`, at a rate in proportion to min(Pareto(pareto) >= 1, cap).

    `off_level` is the off windows' rate as a share of the mean on window's.
    """
    window = checks.positive(window_s, "window", checks.MAX_DURATION_S)
    on_share = checks.positive(p_on, "p_on", 1)
    tail = checks.positive(pareto, "pareto", 100)
    ceiling = checks.within(cap, "cap", 1, 1e6)
    off = checks.within(off_level, "off_level", 0, 1)
    duration = checks.duration(duration_s)
    _segments_fit(duration / window, "window")
    count = int(duration // window) + 1
    state_rng, gap_rng = rng.spawn(2)
    draws = state_rng.random((count, 2))
    size = np.minimum(np.round((1 - draws[:, 1]) ** (-1 / tail), 9), ceiling)
    # E[min(X, cap)] = 1 + integral of x^-pareto from 1 to cap.
    mean_size = 1 + (math.log(ceiling) if tail == 1 else (ceiling ** (1 - tail) - 1) / (1 - tail))
    mean = on_share + (1 - on_share) * off
    level = np.where(draws[:, 0] < on_share, size / mean_size, off) / mean
    return along(
        RateCurve(np.arange(count + 1, dtype=np.float64) * window, level).until(duration),
        rate_per_s,
        cv,
        gap_rng,
    )


def day_arrivals(
    rate_per_s: float,
    cv: float,
    duration_s: float,
    rng: np.random.Generator,
    *,
    period_s: float = 86400.0,
    amplitude: float = 0.5,
    phase: float = 0.0,
) -> Times:
    """Rate x (1 + amplitude sin(2 pi t / period + phase)), phase in radians.

    `rate_per_s` is the mean over whole periods.
    """
    rate = checks.rate(rate_per_s)
    duration = checks.duration(duration_s)
    period = checks.positive(period_s, "period", checks.MAX_DURATION_S)
    swing = checks.within(amplitude, "amplitude", 0, 1)
    offset = checks.number(phase, "phase")
    day = _day_curve(period, swing, offset)
    mass = day.mass()
    whole_days, rest = divmod(duration, period)
    rest_mass = float(np.interp(rest, day.edge_s, mass))
    total = rate * (whole_days * mass[-1] + rest_mass)
    unit = _unit_process(total, cv, rng)
    if unit.size == 0:
        return unit
    days, within_day = np.divmod(unit / rate, mass[-1])
    return whole_ns(days * period + _bend(within_day, day, mass), duration)


def along(curve: RateCurve, rate_per_s: float, cv: float, rng: np.random.Generator) -> Times:
    """Arrivals over the whole of `curve` at `rate_per_s` x its level."""
    rate = checks.rate(rate_per_s)
    mass = curve.mass()
    unit = _unit_process(rate * mass[-1], cv, rng)
    if unit.size == 0:
        return unit
    return whole_ns(_bend(unit / rate, curve, mass), float(curve.edge_s[-1]))


def _unit_process(expected: float, cv: float, rng: np.random.Generator) -> Times:
    checks.cv(cv)
    checks.not_absurd(expected, "rate x duration")
    # One gap is one unit of mass, so the process needs no rate of its own.
    return gamma_arrivals(1.0, cv, expected, rng) if expected > 0 else np.empty(0)


def _bend(mass_at: Times, curve: RateCurve, mass: Times) -> Times:
    """The times at which the curve's mass reaches `mass_at`, none past the end of its segment."""
    segment = np.searchsorted(mass, mass_at, side="right") - 1
    # Rounding may put the last arrivals past the last edge: they belong to the last segment with a rate.
    segment = np.minimum(segment, int(np.flatnonzero(curve.level)[-1]))
    times = curve.edge_s[segment] + (mass_at - mass[segment]) / curve.level[segment]
    return np.minimum(times, curve.edge_s[segment + 1])


def _day_curve(period_s: float, amplitude: float, phase: float) -> RateCurve:
    angle = np.linspace(0, 2 * np.pi, _STEPS_PER_PERIOD + 1) + math.remainder(phase, 2 * math.pi)
    mean_sin = -np.diff(np.cos(angle)) / np.diff(angle)
    # Twelve digits: the ones after differ between math libraries.
    level = np.maximum(np.round(1 + amplitude * mean_sin, 12), 1e-12)
    return RateCurve(np.linspace(0, period_s, _STEPS_PER_PERIOD + 1), level)


def _segments_fit(count: float, where: str) -> None:
    if count > _MAX_SEGMENTS:
        raise TrafficError(
            f"{where}: too short, {count:.3g} changes of rate in the duration; "
            f"give a longer one (at most {_MAX_SEGMENTS:,} changes)"
        )
