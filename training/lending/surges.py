"""When demand outgrows a rung: what was seen of that, and when it is likely to come again.

A surge begins when demand exceeds what the rung holds and ends when it has been calm for a while. From the times
between the beginnings of surges follows at which time after the last one lending is safe. Bursts that come like a
clock are waited for; those that come by chance are as likely now as later, and only what they cost counts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from training.arrays import Floats

REMEMBERED = 64
BINS = 240
DUE = 2.0
"""Nothing is lent while a surge is more than so many times as likely as on average."""
_WIDER = 1.7
"""Half the width of a uniform distribution, in standard deviations."""
_NARROWEST = 0.05
"""Of the mean: nothing comes more exactly than that."""


@dataclass
class Surges:
    """Of one rung. `look` at every step of the clock."""

    calm_s: float
    intervals: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Seconds between the beginnings of surges."""
    began: float | None = None
    """When the last one did."""
    is_on: bool = False
    _above: float = 0.0

    def look(self, now: float, is_above: bool) -> bool:
        """Whether a surge has just begun."""
        if is_above:
            self._above = now
            if self.is_on:
                return False
            if self.began is not None:
                self.intervals.append(now - self.began)
            self.is_on, self.began = True, now
            return True
        if self.is_on and now - self._above >= self.calm_s:
            self.is_on = False
        return False


@dataclass(frozen=True)
class Outlook:
    """At which times after a surge began lending is safe. Without two intervals nobody knows: it is."""

    bin_s: float = 1.0
    safe: NDArray[np.bool_] | None = None
    """[BINS]"""
    later: bool = True
    """After all times that were seen."""
    chance_per_s: float = 0.0
    """Of a surge, on average."""

    def is_safe(self, elapsed_s: float) -> bool:
        number = int(elapsed_s / self.bin_s)
        return self.later if self.safe is None or number >= len(self.safe) else bool(self.safe[number])

    def safe_for_s(self, elapsed_s: float) -> float:
        """How long it stays so from now on."""
        if self.safe is None:
            return np.inf
        number = int(elapsed_s / self.bin_s)
        ahead = self.safe[number:]
        if len(ahead) and not ahead.all():
            return float(np.argmin(ahead)) * self.bin_s
        return np.inf if self.later else max(len(self.safe) * self.bin_s - elapsed_s, 0.0)


def look_ahead(intervals: deque[float], horizon_s: float, may_cost: float) -> Outlook:
    """`horizon_s`: what coming back takes. `may_cost`: of all surges, the share that may find devices lent."""
    seen = np.array(intervals)
    if len(seen) < 2:
        return Outlook()
    mean = float(seen.mean())
    half = max(_WIDER * float(seen.std(ddof=1)) * (1 + 2 / len(seen)), 1.5 * horizon_s, _NARROWEST * mean)
    bin_s = (float(seen.max()) + half) / BINS
    starts: Floats = np.arange(BINS, dtype=np.float64) * bin_s
    # A device lent in a bin is missed if a surge begins in it, or before the device could be back.
    missed = _share_between(seen, half, starts, starts + bin_s + horizon_s)
    left = 1 - _share_between(seen, half, np.full(BINS, -np.inf), starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = np.where(left > 1e-9, missed / (bin_s + horizon_s) / left, np.inf)
    usual = 1 / mean
    safe = chance <= DUE * usual
    order = np.argsort(chance, kind="stable")
    spent = np.cumsum((missed * bin_s / (bin_s + horizon_s))[order])
    safe[order[spent > may_cost]] = False
    return Outlook(bin_s, safe, may_cost >= 1.0, usual)


def _share_between(seen: Floats, half: float, start: Floats, stop: Floats) -> Floats:
    """Of intervals like those seen, each give or take `half`, the share that ends between, [bins]."""
    low, high = np.maximum(seen - half, 0.0), seen + half

    def below(edge: Floats) -> Floats:
        share: Floats = np.clip((edge[:, None] - low) / (high - low), 0, 1).mean(axis=1)
        return share

    return below(stop) - below(start)
