"""How demand went at this time of the day before: what to expect of the next minutes."""

from __future__ import annotations

import math

import numpy as np

DAY_S = 86400.0
BIN_S = 300.0
NEWEST = 0.5
"""What the last day counts against all before it."""


class DayCurve:
    """Of each five minutes of the day, the level that covers all of the demand but the share that may be missed."""

    def __init__(self, risk: float) -> None:
        bins = round(DAY_S / BIN_S)
        self._risk = risk
        self._usual: list[float | None] = [None] * bins
        self._bin = -1
        self._seen: list[float] = []

    def look(self, now: float, work_per_s: float) -> None:
        """At every step of the clock."""
        number = math.floor(now / BIN_S)
        if number != self._bin:
            if self._seen:
                place = self._bin % len(self._usual)
                before, level = self._usual[place], covering(self._seen, self._risk)
                self._usual[place] = level if before is None else before + NEWEST * (level - before)
            self._bin, self._seen = number, []
        self._seen.append(work_per_s)

    def rise(self, now: float, seconds: float) -> float:
        """How many times higher than now demand usually gets from now on, for so long; 1 where nobody knows."""
        usual, first = self._usual, math.floor(now / BIN_S)
        last = min(math.floor((now + seconds) / BIN_S), first + len(usual) - 1)
        level = usual[first % len(usual)]
        if first == last or not level:
            return 1.0
        return max(usual[number % len(usual)] or 0.0 for number in range(first, last + 1)) / level


def covering(demand: list[float], risk: float) -> float:
    """The least level above which there is no more than that share of the demand."""
    falling = np.sort(np.asarray(demand))[::-1]
    below = np.append(falling[1:], 0.0)
    # What lies above each next lower value: every value before it loses the step between.
    above = np.cumsum((falling - below) * np.arange(1, len(falling) + 1))
    allowed = risk * float(falling.sum())
    place = int(np.searchsorted(above, allowed, side="right"))
    if place >= len(falling):
        return 0.0
    before = float(above[place - 1]) if place else 0.0
    return float(falling[place]) - (allowed - before) / (place + 1)
