"""The loan officer: how deep down the ladder devices can be lent now. Counts demand, learns when it surges, decides.

Knows no clock, no device and no job: it is told what was asked for and when, and answers with a rung. The live
controller and the co-simulation call it the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from placement.capacity import Rung
from training.lending.day_curve import DayCurve
from training.lending.recent_demand import RecentDemand
from training.lending.surges import Outlook, Surges, look_ahead

FIRST_HORIZON_S = 1.0
"""What coming back is thought to take before it was ever tried."""
REMEMBERED = 64
LEARNED = 0.3
"""What the last surprise counts."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What loans may cost, and how they are given."""

    risk: float = 0.01
    """The share of all requests that loans may make late."""
    minimum_s: float = 30.0
    """A loan that is not expected to last so long is not given."""
    window_s: float = 1.0
    """Over which demand is counted."""
    calm_s: float = 3.0
    """Without a surge for so long, it is over."""
    low: float = 0.7
    """More is lent only where demand is below this share of what the rung holds."""


@dataclass(frozen=True)
class Option:
    """A rung as it was weighed."""

    drained: tuple[int, ...]
    load: float
    """Demand over what it holds."""
    safe_for_s: float
    is_open: bool
    why: str


@dataclass(frozen=True)
class Verdict:
    """The rung to be on, as a number; 0 lends nothing."""

    depth: int
    why: str
    options: tuple[Option, ...] = ()
    is_surprise: bool = False
    """A surge has begun while devices are lent."""


@dataclass
class LoanOfficer:
    """`rungs`: that of the whole plan first."""

    rungs: Sequence[Rung]
    terms: Terms = field(default_factory=Terms)
    horizon_s: float = FIRST_HORIZON_S
    """What coming back takes, at worst."""
    missed: float = 0.0
    """Requests that a surge which found devices lent has made late, lately."""

    def __post_init__(self) -> None:
        self._demand = RecentDemand(self.terms.window_s)
        self._curve = DayCurve()
        self._surges = [Surges(self.terms.calm_s) for _ in self.rungs]
        self._outlooks = [Outlook() for _ in self.rungs]
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._requests = 0
        self._began: float | None = None
        self._changed = -np.inf

    def saw(self, now: float, model: str, work_s: float, requests: int = 1) -> None:
        """That much was asked for."""
        self._demand.add(now, model, work_s)
        self._requests += requests

    def returned(self, took_s: float, missed: int | None = None) -> None:
        """Devices are back after so long; `missed`: requests that were late for it, where a surge had found them
        lent."""
        self._took.append(took_s)
        self.horizon_s = float(np.quantile(self._took, 0.99))
        if missed is not None:
            self.missed += LEARNED * (missed - self.missed)
        self._learn()

    def decide(self, now: float, depth: int, trouble: str = "") -> Verdict:
        """From the rung it is on: `trouble` says that requests suffer already."""
        self._began = now if self._began is None else self._began
        demand = self._demand.work_per_s(now)
        self._curve.look(now, sum(demand.values()))
        options = tuple(
            self._weigh(number, now, demand, depth, trouble if number <= depth else "")
            for number in range(1, len(self.rungs))
        )
        deepest = next((number for number, option in enumerate(options) if not option.is_open), len(options))
        if deepest == depth:
            return Verdict(depth, "as it is", options)
        self._changed = now
        if deepest > depth:
            return Verdict(deepest, options[deepest - 1].why, options)
        return Verdict(deepest, options[deepest].why, options, self._surges[deepest + 1].is_on)

    def _weigh(self, number: int, now: float, demand: Mapping[str, float], depth: int, trouble: str) -> Option:
        rung, surges, terms = self.rungs[number], self._surges[number], self.terms
        load = rung.load(demand)
        if surges.look(now, load > 1 or bool(trouble)):
            self._learn()
        outlook = self._outlooks[number]
        assert self._began is not None
        elapsed_s = now - (self._began if surges.began is None else surges.began)
        safe_for_s = outlook.safe_for_s(elapsed_s)
        is_lent = number <= depth

        def option(is_open: bool, why: str) -> Option:
            return Option(rung.drained, load, safe_for_s, is_open, why)

        if surges.is_on:
            return option(False, trouble or f"demand is {load:.2f} of what is left, or was {terms.calm_s:g} s ago")
        if not outlook.is_safe(elapsed_s + (self.horizon_s if is_lent else 0.0)):
            return option(False, "a surge is due, or surprises cost more than loans may")
        if is_lent:
            return option(True, "demand is covered")
        if load > terms.low:
            return option(False, f"demand is {load:.2f} of what would be left; below {terms.low:g} it can be lent")
        usual = self._curve.ahead(now, terms.minimum_s)
        if usual > rung.work_per_s:
            return option(False, f"at this time of day demand is usually {usual / rung.work_per_s:.2f} of it")
        if elapsed_s < terms.calm_s or now - self._changed < terms.calm_s:
            return option(False, "it has not been calm for long")
        if safe_for_s < terms.minimum_s:
            return option(False, f"the next surge is due in {safe_for_s:.0f} s; a loan is for {terms.minimum_s:g} s")
        return option(True, f"demand is {load:.2f} of what is left, and no surge is due")

    def _learn(self) -> None:
        """What may be lent when, by what has been seen."""
        for number, surges in enumerate(self._surges):
            seen_s = sum(surges.intervals)
            share = 1.0
            if self.missed > 0 and seen_s > 0 and self._began is not None:
                a_surge = self.terms.risk * self._requests / max(len(surges.intervals), 1)
                share = min(a_surge / self.missed, 1.0)
            self._outlooks[number] = look_ahead(surges.intervals, self.horizon_s, share)
