"""Rules that lend servers: none, Lyra's threshold, and the loan officer that the live controller asks."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from placement.capacity import Rung
from training.cosimulation.fluid import Pool, Seen
from training.lending import LoanOfficer, Terms

MODEL = "all"
"""The one model of the fluid."""


class Rule(Protocol):
    def lend(self, seen: Seen) -> int:
        """How many servers to lend from now on."""
        ...


class Nothing:
    """Loans are off."""

    def lend(self, seen: Seen) -> int:
        return 0


@dataclass
class Threshold:
    """Lyra's: every `every_s`, lend what exceeds the servers that the demand of the last `window_s` fills and a fixed
    headroom; when their use is above a threshold in between, take back what is missing to that."""

    pool: Pool
    headroom: int
    above: float = 0.9
    every_s: float = 300.0
    window_s: float = 300.0
    _work: deque[float] = field(default_factory=deque)
    _sum: float = 0.0
    _next: float = 0.0

    def lend(self, seen: Seen) -> int:
        self._work.append(seen.work)
        self._sum += seen.work
        if len(self._work) * seen.tick_s > self.window_s:
            self._sum -= self._work.popleft()
        work_per_s = max(self._sum, 0.0) / (len(self._work) * seen.tick_s)
        spare = max(self.pool.servers - math.ceil(work_per_s) - self.headroom, 0)
        if seen.now >= self._next:
            self._next = seen.now + self.every_s
            return spare
        if work_per_s > self.above * (self.pool.servers - seen.lent):
            return min(spare, seen.lent)
        return seen.lent


class Officer:
    """The loan officer on a ladder of `step` servers a rung; what a rung holds is linear in the servers that it
    leaves."""

    def __init__(self, pool: Pool, terms: Terms, step: int = 4) -> None:
        self._pool, self._step = pool, step
        left = range(pool.servers, 0, -step)
        self._rungs = [Rung(tuple(range(number)), float(servers)) for number, servers in enumerate(left)]
        self.officer = LoanOfficer(self._rungs, terms)
        self._missed = 0.0
        self._surprised = False

    def lend(self, seen: Seen) -> int:
        officer, now = self.officer, seen.now
        officer.saw(now, MODEL, seen.work, round(seen.requests))
        if self._surprised:
            self._missed += seen.late
        if seen.back is not None:
            officer.returned(seen.tick_s + seen.back, round(self._missed) if self._surprised else None)
            self._missed, self._surprised = 0.0, False
        depth = seen.lent // self._step
        deeper = officer.decide(now, depth, explain=False).depth
        if deeper < depth:
            self._surprised = True
            self._missed += seen.late
        return deeper * self._step
