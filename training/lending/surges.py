"""When demand outgrows rungs: what was seen of that, and when it is likely to come again.

A surge of a rung begins when demand exceeds what it holds and ends when it has been calm for a while. From the times
between the beginnings of surges follows at which time after the last one lending is safe. Bursts that come like a
clock are waited for; those that come by chance are as likely now as later, and only what they cost counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.arrays import Bools, Floats, Ints

REMEMBERED = 64
BINS = 240
DUE = 2.0
"""Nothing is lent while a surge is more than so many times as likely as on average."""
_WIDER = 1.7
"""Half the width of a uniform distribution, in standard deviations."""
_NARROWEST = 0.05
"""Of the mean: nothing comes more exactly than that."""


class Surges:
    """Of all rungs. `look` at every step of the clock."""

    def __init__(self, rungs: int, calm_s: float) -> None:
        self.calm_s = calm_s
        self.intervals: list[deque[float]] = [deque(maxlen=REMEMBERED) for _ in range(rungs)]
        """Seconds between the beginnings of surges, by rung."""
        self.began: Floats = np.full(rungs, np.nan)
        """When the last one did; NaN before the first."""
        self.is_on: Bools = np.zeros(rungs, np.bool_)
        self._above: Floats = np.full(rungs, -np.inf)

    def look(self, now: float, is_above: Bools) -> Ints:
        """The rungs on which a surge has just begun."""
        self._above[is_above] = now
        just = is_above & ~self.is_on
        self.is_on &= now - self._above < self.calm_s
        self.is_on |= is_above
        begun = np.flatnonzero(just)
        for number in begun.tolist():
            if not np.isnan(self.began[number]):
                self.intervals[number].append(now - float(self.began[number]))
            self.began[number] = now
        return begun


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


class Outlooks:
    """Those of all rungs side by side: what each says of the time since its last surge, [rungs]."""

    def __init__(self, rungs: int) -> None:
        self._rows = np.arange(rungs)
        self._bin_s: Floats = np.ones(rungs)
        self._safe: Bools = np.ones((rungs, BINS + 1), np.bool_)
        self._safe_for: Floats = np.full((rungs, BINS + 1), np.inf)
        self.chance_per_s: Floats = np.zeros(rungs)

    def put(self, number: int, outlook: Outlook) -> None:
        """What is expected of a rung from now on."""
        self._bin_s[number] = outlook.bin_s
        self._safe[number] = outlook.later if outlook.safe is None else np.append(outlook.safe, outlook.later)
        self.chance_per_s[number] = outlook.chance_per_s
        # From each bin, the bins until the next unsafe one: the running minimum of the unsafe places, from the end.
        places = np.where(self._safe[number], np.inf, np.arange(BINS + 1))
        until = np.minimum.accumulate(places[::-1])[::-1]
        self._safe_for[number] = np.maximum(until - np.arange(BINS + 1), 0.0) * outlook.bin_s

    def is_safe(self, elapsed_s: Floats) -> Bools:
        safe: Bools = self._safe[self._rows, self._bins(elapsed_s)]
        return safe

    def safe_for_s(self, elapsed_s: Floats) -> Floats:
        """How long it stays so from now on."""
        seconds: Floats = self._safe_for[self._rows, self._bins(elapsed_s)]
        return seconds

    def _bins(self, elapsed_s: Floats) -> Ints:
        return np.minimum(elapsed_s / self._bin_s, BINS).astype(np.int64)


def look_ahead(intervals: Iterable[float], horizon_s: float, may_cost: float) -> Outlook:
    """`horizon_s`: what coming back takes. `may_cost`: of all surges, the share that may find devices lent."""
    seen = np.array(tuple(intervals))
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
