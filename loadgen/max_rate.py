"""The search for the largest rate at which enough requests meet their goals: by doubling, then halving the gap."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from loadgen.errors import NoRequestsError

PRECISION = 0.05
_MOST_PROBES = 24
_TRIES = 3
_LEAST_PART = 4096
"""Below this part of the first rate nothing is looked for."""
LEAST_REQUESTS = 10
"""Nor where fewer than this are expected in a run."""


@dataclass(frozen=True)
class Judged:
    """A test at one rate: share of requests within the goals, and whether to believe it."""

    share: float
    valid: bool


class Probe(msgspec.Struct, frozen=True):
    rate: float
    share: float
    valid: bool
    held: bool


class MaxRate(msgspec.Struct, frozen=True):
    rate: float | None
    """The largest rate held; None when none was."""
    at: float
    """Share of requests that must be within the goals."""
    limited_by: str
    """"server": a rate a little above was not held; "generator": above it the generator could not keep up;
    "interrupt": the search was ended before it knew."""
    probes: list[Probe]


def find_max_rate(
    probe: Callable[[float], Judged | None], start_per_s: float, at: float, least_per_s: float = 0.0
) -> MaxRate:
    """`probe` runs a test at a rate; None when it was interrupted. Ends when the next rate not held is within PRECISION
    of the largest held, or when `least_per_s` is not held."""
    probes: list[Probe] = []
    held, missed = 0.0, math.inf
    rate, least, ended = start_per_s, max(least_per_s, start_per_s / _LEAST_PART), ""
    while len(probes) < _MOST_PROBES:
        try:
            judged = _tried(probe, rate)
        except NoRequestsError:
            if not probes:
                raise
            break
        if judged is None:
            ended = "interrupt"
            break
        is_held = judged.valid and judged.share >= at
        probes.append(Probe(rate, judged.share, judged.valid, is_held))
        held, missed = (rate, missed) if is_held else (held, rate)
        if missed <= held * (1 + PRECISION) or (not held and missed <= least):
            break
        rate = _next_rate(held, missed, least)
    first_missed = [one for one in probes if one.rate == missed]
    limited_by = "generator" if first_missed and not first_missed[0].valid else "server"
    return MaxRate(held or None, at, ended or limited_by, probes)


def _next_rate(held: float, missed: float, least: float) -> float:
    if math.isinf(missed):
        return held * 2
    return (held + missed) / 2 if held else max(missed / 2, least)


def _tried(probe: Callable[[float], Judged | None], rate_per_s: float) -> Judged | None:
    """Once more when the generator was held up: it may have been by chance."""
    for _ in range(_TRIES - 1):
        judged = probe(rate_per_s)
        if judged is None or judged.valid:
            return judged
    return probe(rate_per_s)
