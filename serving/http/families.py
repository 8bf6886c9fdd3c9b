"""Figures as metrics name them: plain values, read when somebody asks. Counting costs a list access and an addition."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)


class Histogram:
    """Counts by bucket; a value that equals a bound is within it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(frozen=True)
class Family:
    """All values of one metric; `name` without `penstock:`, and of a counter without `_total`."""

    name: str
    help: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float | Histogram] = field(default_factory=dict)
    """By the labels' values."""
