"""What a model's requests came to, counted since the server started: two counts, one taken from the other, say what
happened in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from router.statistics import ClassStatistics, Statistics
from serving.http.families import SECONDS, TOKEN_SECONDS
from serving.http.meters import ModelMeters

LEAST_GAPS = 10
"""Fewer gaps between requests say nothing about burstiness."""


class Totals(NamedTuple):
    """Of one model; `ttft`, `token` and `latency` are counts by the buckets of the endpoint's histograms."""

    at: float
    """time.monotonic"""
    arrivals: int
    judged: int
    met: int
    gaps: int
    gap_s: float
    gap_square: float
    refusals: dict[str, int]
    ttft: tuple[int, ...]
    token: tuple[int, ...]
    latency: tuple[int, ...]

    def since(self, before: Totals) -> Totals:
        return Totals(
            at=self.at - before.at,
            arrivals=self.arrivals - before.arrivals,
            judged=self.judged - before.judged,
            met=self.met - before.met,
            gaps=self.gaps - before.gaps,
            gap_s=self.gap_s - before.gap_s,
            gap_square=self.gap_square - before.gap_square,
            refusals={
                reason: more
                for reason, count in self.refusals.items()
                if (more := count - before.refusals.get(reason, 0))
            },
            ttft=_difference(self.ttft, before.ttft),
            token=_difference(self.token, before.token),
            latency=_difference(self.latency, before.latency),
        )

    # Of a difference

    @property
    def rate_per_s(self) -> float:
        return self.arrivals / max(self.at, 1e-9)

    @property
    def cv(self) -> float | None:
        """Of the gaps between requests; None while there are too few."""
        if self.gaps < LEAST_GAPS or self.gap_s <= 0:
            return None
        mean = self.gap_s / self.gaps
        return math.sqrt(max(self.gap_square / self.gaps / mean**2 - 1, 0.0))

    @property
    def in_time(self) -> float | None:
        return self.met / self.judged if self.judged else None

    @property
    def refused(self) -> int:
        return sum(self.refusals.values())

    def ttft_s(self, share: float) -> float | None:
        return quantile(SECONDS, self.ttft, share)

    def token_s(self, share: float) -> float | None:
        return quantile(TOKEN_SECONDS, self.token, share)

    def latency_s(self, share: float) -> float | None:
        return quantile(SECONDS, self.latency, share)


class _Gaps:
    """Between the requests of one model."""

    __slots__ = ("count", "last", "squares", "sum_s")

    def __init__(self) -> None:
        self.count, self.sum_s, self.squares, self.last = 0, 0.0, 0.0, -math.inf

    def add(self, at: float) -> None:
        if self.last > -math.inf:
            gap = at - self.last
            self.count += 1
            self.sum_s += gap
            self.squares += gap * gap
        self.last = at


class Counter:
    """Takes the totals of all models. Looks at each arrival once; the rest are counts that others keep."""

    def __init__(self, statistics: Statistics, meters: dict[str, ModelMeters]) -> None:
        self._statistics, self._meters = statistics, meters
        self._gaps = {name: _Gaps() for name in meters}
        self._seen = -math.inf

    def take(self, now: float) -> dict[str, Totals]:
        self._take_arrivals()
        classes: dict[str, list[ClassStatistics]] = {name: [] for name in self._meters}
        for (model, _), one in self._statistics.classes.items():
            classes[model].append(one)
        return {name: self._of(name, classes[name], now) for name in self._meters}

    def _take_arrivals(self) -> None:
        fresh = []
        for arrival in reversed(self._statistics.arrived):
            if arrival[0] <= self._seen:
                break
            fresh.append(arrival)
        for at, model, *_ in reversed(fresh):
            self._gaps[model].add(at)
            self._seen = at

    def _of(self, name: str, classes: Iterable[ClassStatistics], now: float) -> Totals:
        gaps, meters = self._gaps[name], self._meters[name]
        refusals: dict[str, int] = {}
        arrivals = judged = met = 0
        for one in classes:
            arrivals, judged, met = arrivals + one.arrivals, judged + one.judged, met + one.met
            for reason, count in one.not_served.items():
                refusals[reason] = refusals.get(reason, 0) + count
        return Totals(
            at=now,
            arrivals=arrivals,
            judged=judged,
            met=met,
            gaps=gaps.count,
            gap_s=gaps.sum_s,
            gap_square=gaps.squares,
            refusals=refusals,
            ttft=tuple(meters.ttft.counts),
            token=tuple(meters.token_latency.counts),
            latency=tuple(meters.latency.counts),
        )


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Within its bucket as if values were spread evenly; beyond the last bound, that bound."""
    total = sum(counts)
    if not total:
        return None
    wanted, below = share * total, 0
    for place, count in enumerate(counts[:-1]):
        if count and below + count >= wanted:
            lower = bounds[place - 1] if place else 0.0
            return lower + (bounds[place] - lower) * (wanted - below) / count
        below += count
    return float(bounds[-1])


def _difference(now: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return now if now is before else tuple([a - b for a, b in zip(now, before, strict=True)])
