"""Replay of a recorded trace at another rate and burstiness, as AlpaServe does it.

Time is cut into windows; in each, rate and cv are estimated, scaled, and a Gamma process in equilibrium is
drawn anew. Knows nothing of files and models: one call replays the arrivals of one model.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen import checks
from loadgen.arrivals import Times, gamma_arrivals, whole_ns
from loadgen.errors import TrafficError

_FEW_GAPS = 5
_LEAST_CV = 0.01
_MAX_WINDOWS = 10_000_000


@dataclass(frozen=True, eq=False)
class Replayed:
    """`row[i]` is the trace's request that arrival i stands for: itself, or one of the same window."""

    arrival_s: Times
    row: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WindowStats:
    """Per window: its requests (first row, count) and the cv of their gaps; edge_s has one more entry."""

    edge_s: Times
    first: NDArray[np.int64]
    count: NDArray[np.int64]
    cv: Times


def replay(
    trace_s: Times,
    duration_s: float,
    rng: np.random.Generator,
    *,
    window_s: float = 60.0,
    rate_scale: float = 1.0,
    cv_scale: float = 1.0,
    resample: bool = True,
) -> Replayed:
    """The trace's [0, duration) at `rate_scale` x its rate and `cv_scale` x its cv in each window.

    `resample=False` gives the recorded times themselves, and takes no scale.
    """
    duration = checks.duration(duration_s)
    window = checks.positive(window_s, "window", checks.MAX_DURATION_S)
    rate_factor = checks.within(rate_scale, "rate_scale", 0, 1e6)
    cv_factor = checks.positive(cv_scale, "cv_scale", checks.MAX_CV)
    _check_trace(trace_s)
    if duration / window > _MAX_WINDOWS:
        raise TrafficError(f"window: {window:g} s is too short; give at least {duration / _MAX_WINDOWS:g} s")
    if not resample:
        if rate_factor != 1 or cv_factor != 1:
            raise TrafficError("resample: false keeps the trace as it is; give rate_scale 1 and cv_scale 1 with it")
        kept = int(np.searchsorted(trace_s, duration, side="left"))
        return Replayed(trace_s[:kept].copy(), np.arange(kept))
    checks.not_absurd(rate_factor * trace_s.size, "rate_scale")
    stats = window_stats(trace_s, duration, window)
    gap_rng, row_rng = rng.spawn(2)
    times, rows = [np.empty(0)], [np.empty(0, dtype=np.int64)]
    for index in np.flatnonzero(stats.count):
        start = stats.edge_s[index]
        length = float(stats.edge_s[index + 1] - start)
        rate = rate_factor * stats.count[index] / length
        cv = min(max(cv_factor * stats.cv[index], _LEAST_CV), checks.MAX_CV)
        times.append(start + gamma_arrivals(float(rate), float(cv), length, gap_rng))
        rows.append(stats.first[index] + row_rng.integers(stats.count[index], size=times[-1].size))
    arrival = whole_ns(np.concatenate(times), duration)
    return Replayed(arrival, np.concatenate(rows)[: arrival.size])


def window_stats(trace_s: Times, duration_s: float, window_s: float) -> WindowStats:
    """Count and cv of each window; one with few gaps takes the cv pooled over all windows, 1 without any."""
    # A last window under a hundredth of the others would give wild rates: it joins the one before.
    windows = max(math.ceil(duration_s / window_s - 0.01), 1)
    edges = np.append(np.arange(windows, dtype=np.float64) * window_s, duration_s)
    bounds = np.searchsorted(trace_s, edges, side="left")
    first, count = bounds[:-1], np.diff(bounds)
    cv = np.full(count.size, np.nan)
    squares, freedom = 0.0, 0
    for index in np.flatnonzero(count >= 2):
        gaps = np.diff(trace_s[first[index] : first[index] + count[index]])
        mean = gaps.mean()
        if mean > 0:
            square = float(np.square(gaps / mean - 1).sum())
            # Each window's own mean takes one degree of freedom: a single gap says nothing of spread.
            squares, freedom = squares + square, freedom + gaps.size - 1
            if gaps.size >= _FEW_GAPS:
                cv[index] = math.sqrt(square / gaps.size)
    pooled = math.sqrt(squares / freedom) if freedom else 1.0
    return WindowStats(edges, first, count, np.where(np.isnan(cv), pooled, cv))


def _check_trace(trace_s: Times) -> None:
    if trace_s.ndim != 1 or not np.isfinite(trace_s).all():
        raise TrafficError("trace: holds something that is not a finite time; give one array of seconds")
    if trace_s.size and (trace_s[0] < 0 or (np.diff(trace_s) < 0).any()):
        raise TrafficError("trace: times are not ascending from 0; sort them")
