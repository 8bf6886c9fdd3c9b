"""When demand outgrows rungs: what was seen of that, and when it is likely to come again.

A surge of a rung begins when demand exceeds what it holds and ends when it has been calm for a while. From the times
between the beginnings of surges follows at which time after the last one lending is safe. Bursts that come like a
clock are waited for, unless they are known to cost next to nothing; those that come by chance are as likely now as
later, and only what they cost counts.
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
"""A surge that is more than so many times as likely as on average is waited for."""
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
    """At which times after a surge began lending is safe. By default always."""

    first_s: float = 1.0
    """Where the first bin ends; each next ends `ratio` times later."""
    ratio: float = 2.0
    safe: NDArray[np.bool_] | None = None
    """[BINS + 1], the last for all times after"""

    @property
    def edges_s(self) -> Floats:
        """Where each bin begins, [BINS + 1]"""
        return _edges(self.first_s, self.ratio)


class Outlooks:
    """Those of all rungs side by side: what each says of the time since its last surge, [rungs]."""

    def __init__(self, rungs: int) -> None:
        self._rows = np.arange(rungs)
        self._log_first: Floats = np.zeros(rungs)
        self._log_ratio: Floats = np.ones(rungs)
        self._unsafe_s: Floats = np.full((rungs, BINS + 1), np.inf)
        """From each bin on, when it is unsafe next."""

    def put(self, number: int, outlook: Outlook) -> None:
        """What is expected of a rung from now on."""
        self._log_first[number], self._log_ratio[number] = np.log(outlook.first_s), np.log(outlook.ratio)
        unsafe_s = (
            np.full(BINS + 1, np.inf) if outlook.safe is None else np.where(outlook.safe, np.inf, outlook.edges_s)
        )
        self._unsafe_s[number] = np.minimum.accumulate(unsafe_s[::-1])[::-1]

    def safe_for_s(self, elapsed_s: Floats) -> Floats:
        """How long it stays so from now on; 0 where it is not safe now."""
        bins = (np.log(np.maximum(elapsed_s, 1e-9)) - self._log_first) / self._log_ratio + 1
        seconds: Floats = self._unsafe_s[self._rows, np.clip(bins, 0, BINS).astype(np.int64)] - elapsed_s
        return np.maximum(seconds, 0.0)


def look_ahead(intervals: Iterable[float], horizon_s: float, may_cost: float, due: float = DUE) -> Outlook:
    """`horizon_s`: what coming back takes. `may_cost`: of all surges, the share that may find devices lent. Nothing is
    lent while a surge is more than `due` times as likely as on average."""
    seen = np.array(tuple(intervals))
    count = len(seen)
    if count < 2 or (may_cost >= 1 and due == np.inf):
        return Outlook()
    mean = float(seen.mean())
    # Each interval could as well have been a little shorter or longer: as much as they differ, but a short one that
    # was seen among long ones stays short.
    half = max(_WIDER * float(seen.std(ddof=1)) * (1 + 2 / count), 1.5 * horizon_s, _NARROWEST * mean)
    halves = np.clip(seen / 2, max(1.5 * horizon_s, _NARROWEST * mean), half)
    longest = float((seen + halves).max())
    first_s = float(seen.min()) / 4
    ratio = float((longest / first_s) ** (1 / (BINS - 1)))
    starts = _edges(first_s, ratio)[:-1]
    spans = np.diff(_edges(first_s, ratio))
    # A device lent in a bin is missed if a surge begins in it, or before the device could be back.
    missed = _share_before(seen, halves, starts + spans + horizon_s) - _share_before(seen, halves, starts)
    left = np.maximum(1 - _share_before(seen, halves, starts), 1 / count)
    chance = missed / (spans + horizon_s) / left
    # After all that was seen, one of so many and one more is still to be expected, in about as long again.
    chance, missed = np.append(chance, 1 / longest), np.append(missed * spans / (spans + horizon_s), 1 / (count + 1))
    safe = chance <= due / mean
    order = np.argsort(chance, kind="stable")
    if may_cost < 1:
        safe[order[np.cumsum(missed[order]) > may_cost]] = False
    return Outlook(first_s, ratio, safe)


def _edges(first_s: float, ratio: float) -> Floats:
    edges: Floats = np.append(0.0, first_s * ratio ** np.arange(BINS))
    return edges


def _share_before(seen: Floats, halves: Floats, edge_s: Floats) -> Floats:
    """Of intervals like those seen, each give or take its half, the share that has ended by then, [edges]."""
    low, high = np.maximum(seen - halves, 0.0), seen + halves
    share: Floats = np.clip((edge_s[:, None] - low) / (high - low), 0, 1).mean(axis=1)
    return share
