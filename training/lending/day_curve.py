"""How demand went at this time of the day before: what to expect of the next minutes."""

from __future__ import annotations

import math

DAY_S = 86400.0
BIN_S = 300.0
NEWEST = 0.5
"""What the last day counts against all before it."""


class DayCurve:
    """The greatest demand of each five minutes of the day, over the days."""

    def __init__(self) -> None:
        bins = round(DAY_S / BIN_S)
        self._usual: list[float | None] = [None] * bins
        self._bin = -1
        self._most = 0.0

    def look(self, now: float, work_per_s: float) -> None:
        number = math.floor(now / BIN_S)
        if number != self._bin:
            if self._bin >= 0:
                place = self._bin % len(self._usual)
                before = self._usual[place]
                self._usual[place] = self._most if before is None else before + NEWEST * (self._most - before)
            self._bin, self._most = number, 0.0
        self._most = max(self._most, work_per_s)

    def ahead(self, now: float, seconds: float) -> float:
        """The greatest demand that is usual from now on, for so long; 0 while there is no such day."""
        first, last = math.floor(now / BIN_S), math.floor((now + seconds) / BIN_S)
        places = {number % len(self._usual) for number in range(first, last + 1)}
        return max((self._usual[place] or 0.0 for place in places), default=0.0)
