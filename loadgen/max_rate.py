"""The search for the largest rate at which enough requests meet their goals: by doubling, then halving the gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

PRECISION = 0.05
_MOST_PROBES = 24
_TRIES = 3
_LEAST = 4096
"""Below this part of the first rate nothing is looked for."""


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
    """"server": a rate a little above was not held; "generator": above it the generator could not keep up."""
    probes: list[Probe]


def find_max_rate(probe: Callable[[float], Judged], start_per_s: float, at: float) -> MaxRate:
    """`probe` runs a test at a rate. Ends when the next rate not held is within PRECISION of the largest held."""
    probes: list[Probe] = []
    held, missed = 0.0, float("inf")
    rate = start_per_s
    while len(probes) < _MOST_PROBES:
        judged = _tried(probe, rate)
        is_held = judged.valid and judged.share >= at
        probes.append(Probe(rate, judged.share, judged.valid, is_held))
        if is_held:
            held = rate
        else:
            missed = rate
        if missed <= held * (1 + PRECISION) or (not held and missed < start_per_s / _LEAST):
            break
        rate = held * 2 if missed == float("inf") else (missed / 2 if not held else (held + missed) / 2)
    first_missed = [one for one in probes if one.rate == missed]
    limited_by = "generator" if first_missed and not first_missed[0].valid else "server"
    return MaxRate(held or None, at, limited_by, probes)


def _tried(probe: Callable[[float], Judged], rate_per_s: float) -> Judged:
    """Once more when the generator was held up: it may have been by chance."""
    for _ in range(_TRIES - 1):
        judged = probe(rate_per_s)
        if judged.valid:
            return judged
    return probe(rate_per_s)
