"""How what is observed corrects what is profiled: what a batch usually takes, and what all but a tenth stay below."""

from __future__ import annotations

LATE_SHARE = 0.1
STEP = 0.1
"""How much one batch moves the factor (adaptive conformal inference, Gibbs and Candès 2021, on a ratio)."""

GAIN, MOST_SURPRISE = 0.2, 0.5
"""How much of a batch's surprise moves what is usual; a greater surprise counts as this."""

FORGET_AFTER_S = 1.0
"""A correction that keeps a model from being served at all is forgotten by a hundredth, this often."""

LEAST_FACTOR, MOST_FACTOR = 0.25, 8.0

TOLERANCE = 0.01
"""A difference of up to this share of what was reckoned, or of a tenth of a millisecond, is none."""

TOLERANCE_S = 1e-4
HAIR_S = 1e-6


def is_as_reckoned(difference_s: float, planned_s: float) -> bool:
    return abs(difference_s) <= max(TOLERANCE * planned_s, TOLERANCE_S)


def corrected(factor: float, observed_s: float, planned_s: float) -> float:
    """The factor after a batch that was reckoned, with it, to take `planned_s`: it rises nine times as fast as it
    falls, so that it comes to rest where a tenth of the batches take longer."""
    if is_as_reckoned(observed_s - planned_s, planned_s):
        return factor
    late = observed_s > planned_s
    factor *= 1 + STEP * (late - LATE_SHARE)
    return min(max(factor, LEAST_FACTOR), MOST_FACTOR)


def late(factor: float, observed_s: float, usual_s: float) -> float:
    """What all but a tenth of the batches stay below, over what is usual: as `corrected`, but late by a hair is late,
    since a request that was reckoned to be done at its deadline then misses it."""
    if observed_s > factor * usual_s + HAIR_S:
        return min(factor * (1 + STEP * (1 - LATE_SHARE)), MOST_FACTOR)
    return max(corrected(factor, observed_s, factor * usual_s), 1.0)


def usual(factor: float, observed_s: float, planned_s: float) -> float:
    """The factor after a batch that was reckoned, with it, to take `planned_s`: it comes to rest at the mean."""
    if planned_s <= 0 or is_as_reckoned(observed_s - planned_s, planned_s):
        return factor
    surprise = min(max(observed_s / planned_s - 1, -MOST_SURPRISE), MOST_SURPRISE)
    return min(max(factor * (1 + GAIN * surprise), LEAST_FACTOR), MOST_FACTOR)


def forgotten(factor: float) -> float:
    """A factor above 1 that nothing confirms any more, one step nearer to 1."""
    return max(factor * (1 - STEP * LATE_SHARE), 1.0)
