"""The loan officer: how deep down the ladder devices can be lent now. Counts demand, learns when it surges, decides.

Knows no clock, no device and no job: it is told what was asked for and when, and answers with a rung. The live
controller and the co-simulation call it the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from placement.capacity import Rung
from training.arrays import Bools, Floats
from training.lending.backlog import Backlog
from training.lending.day_curve import DayCurve
from training.lending.recent_demand import RecentDemand
from training.lending.surges import DUE, Outlooks, Surges, look_ahead

FIRST_HORIZON_S = 1.0
"""What coming back is thought to take before it was ever tried."""
ALL = ""
"""All models together."""
REMEMBERED = 64
LEARNED = 0.3
"""What the last surprise counts."""
CHEAP = 0.25
"""Of what loans may cost: surges that cost less are not waited for."""
SAME = 0.02
"""A share that has moved by less is the same: what follows from it is not worked out again."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What loans may cost, and how they are given."""

    risk: float = 0.01
    """The share of all requests that loans may make late."""
    minimum_s: float = 30.0
    """A loan that is not expected to last so long is not given."""
    windows_s: tuple[float, ...] = (1.0,)
    """Over which demand is counted, ascending. More is lent where it is low in all of them."""
    patience_s: float = 0.0
    """A rung is exceeded when work would wait so long on it; 0: when demand of the shortest window is above what it
    holds."""
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


@dataclass(frozen=True)
class _Check:
    """What closes rungs, [rungs], and how that is said of one."""

    closes: Bools
    why: Callable[[int], str]


@dataclass
class LoanOfficer:
    """`rungs`: that of the whole plan first."""

    rungs: Sequence[Rung]
    terms: Terms = field(default_factory=Terms)
    horizon_s: float = FIRST_HORIZON_S
    """What coming back takes, at worst."""
    missed: float | None = None
    """Requests that a surge which found devices lent has made late, lately; None while that has never happened."""

    def __post_init__(self) -> None:
        count = len(self.rungs)
        self._demands = [RecentDemand(window_s) for window_s in self.terms.windows_s]
        self._curve = DayCurve(self.terms.risk)
        self._surges = Surges(count, self.terms.calm_s)
        self._outlooks = Outlooks(count)
        self._learned_from = [(0, 0.0, DUE, 1.0)] * count
        """Surges, and the other arguments of look_ahead, that each outlook follows from."""
        self._stale = np.zeros(count, np.bool_)
        self._numbers = np.arange(count)
        self._held = np.array([rung.work_per_s for rung in self.rungs])
        self._alone = {name: np.array([rung.models[name] for rung in self.rungs]) for name in self.rungs[0].models}
        held = {ALL: self._held} | self._alone if self.terms.patience_s else {}
        self._backlogs = {name: Backlog(work, self.terms.patience_s) for name, work in held.items()}
        self._seen = np.zeros(count, np.int64)
        """Surges that began, by rung."""
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._requests = 0
        self._began: float | None = None
        self._changed = -np.inf

    def saw(self, now: float, model: str, work_s: float, requests: int = 1) -> None:
        """That much was asked for."""
        for demand in self._demands:
            demand.add(now, model, work_s)
        for name in (ALL, model):
            if name in self._backlogs:
                self._backlogs[name].add(work_s, requests)
        self._requests += requests

    def returned(self, took_s: float, missed: int | None = None) -> None:
        """Devices are back after so long; `missed`: requests that were late for it, where a surge had found them
        lent."""
        self._took.append(took_s)
        self.horizon_s = float(np.quantile(self._took, 0.99))
        if missed is not None:
            self.missed = missed if self.missed is None else self.missed + LEARNED * (missed - self.missed)
        self._stale[:] = True

    def decide(self, now: float, depth: int, trouble: str = "", explain: bool = True) -> Verdict:
        """From the rung it is on: `trouble` says that requests suffer already. The verdict lists how every rung was
        weighed where it is to `explain`."""
        self._began = now if self._began is None else self._began
        demands = [demand.work_per_s(now) for demand in self._demands]
        self._curve.look(now, sum(demands[-1].values()))
        each = [self._loads(demand) for demand in demands]
        loads = np.maximum.reduce(each)
        peaks = np.maximum.reduce([one.load(now) for one in self._backlogs.values()]) if self._backlogs else each[0]
        is_lent = self._numbers <= depth
        # Who is turned away now would be with less, too.
        begun = self._surges.look(now, (peaks > 1) | bool(trouble))
        if len(begun):
            self._seen[begun] += 1
            self._stale[:] = True
        checks = self._checks(now, loads, peaks, is_lent, trouble, explain)
        closed = np.logical_or.reduce([check.closes for check in checks])[1:]
        deepest = int(closed.argmax()) if closed.any() else len(closed)
        options = self._options(now, loads, checks, is_lent) if explain else ()
        if deepest == depth:
            return Verdict(depth, "as it is", options)
        self._changed = now
        number = deepest + 1 if deepest < depth else deepest
        is_surprise = deepest < depth and bool(self._surges.is_on[number])
        return Verdict(deepest, _why(number, loads, checks, is_lent), options, is_surprise)

    def _loads(self, demand: Mapping[str, float]) -> Floats:
        """Rung.load of every rung, [rungs]"""
        loads = _over(sum(demand.values()), self._held)
        for name, work in demand.items() if self._alone else ():
            loads = np.maximum(loads, _over(work, self._alone[name]))
        return loads

    def _checks(
        self, now: float, loads: Floats, peaks: Floats, is_lent: Bools, trouble: str, everything: bool
    ) -> tuple[_Check, ...]:
        """In the order in which they are told. What surges are due is worked out only where nothing else closes a
        rung, or `everything` is asked for."""
        terms, surges = self.terms, self._surges
        elapsed_s = self._elapsed_s(now)
        more = ~is_lent
        soon = loads * self._curve.rise(now, terms.minimum_s)
        surging = surges.is_on
        much, rising = more & (loads > terms.low), more & (soon > 1)
        restless = more & ((elapsed_s < terms.calm_s) | (now - self._changed < terms.calm_s))
        self._learn(self._stale if everything else self._stale & ~(surging | much | rising | restless), now)
        safe_for_s = self._outlooks.safe_for_s(elapsed_s + self.horizon_s * is_lent)
        due = safe_for_s <= 0
        return (
            _Check(
                surging, lambda n: trouble or f"demand is {peaks[n]:.2f} of what is left, or was {terms.calm_s:g} s ago"
            ),
            _Check(due, lambda n: "a surge is due, or surprises cost more than loans may"),
            _Check(
                much, lambda n: f"demand is {loads[n]:.2f} of what would be left; below {terms.low:g} it can be lent"
            ),
            _Check(rising, lambda n: f"at this time of day demand rises: soon to {soon[n]:.2f} of what would be left"),
            _Check(restless, lambda n: "it has not been calm for long"),
            _Check(
                more & (safe_for_s < terms.minimum_s),
                lambda n: f"the next surge is due in {safe_for_s[n]:.0f} s; a loan is for {terms.minimum_s:g} s",
            ),
        )

    def _options(self, now: float, loads: Floats, checks: Sequence[_Check], is_lent: Bools) -> tuple[Option, ...]:
        safe_for_s = self._outlooks.safe_for_s(self._elapsed_s(now))
        return tuple(
            Option(
                self.rungs[number].drained,
                float(loads[number]),
                float(safe_for_s[number]),
                not any(check.closes[number] for check in checks),
                _why(number, loads, checks, is_lent),
            )
            for number in range(1, len(self.rungs))
        )

    def _elapsed_s(self, now: float) -> Floats:
        """Since the last surge of each rung began, or the first decision, [rungs]"""
        began = self._surges.began
        assert self._began is not None
        elapsed_s: Floats = now - np.where(np.isnan(began), self._began, began)
        return elapsed_s

    def _learn(self, which: Bools, now: float) -> None:
        """What may be lent when, by what has been seen."""
        assert self._began is not None
        for number in np.flatnonzero(which).tolist():
            intervals = self._surges.intervals[number]
            count, costs = int(self._seen[number]), CHEAP
            if self.missed is not None and intervals and now > self._began:
                requests_per_s = self._requests / (now - self._began)
                a_surge = self.terms.risk * requests_per_s * sum(intervals) / len(intervals)
                costs = self.missed / max(a_surge, 1e-9)
            due, may_cost = DUE if costs >= CHEAP else np.inf, 1 / max(costs, 1.0)
            before, follows_from = self._learned_from[number], (count, self.horizon_s, due, may_cost)
            if before[:3] != follows_from[:3] or abs(may_cost - before[3]) > SAME * before[3]:
                self._learned_from[number] = follows_from
                self._outlooks.put(number, look_ahead(intervals, self.horizon_s, may_cost, due))
        self._stale &= ~which


def _over(work: float, held: Floats) -> Floats:
    """What is asked for over what is held: above 1 it is too much, [rungs]"""
    if work <= 0:
        return np.zeros(len(held))
    with np.errstate(divide="ignore"):
        loads: Floats = work / held
    return loads


def _why(number: int, loads: Floats, checks: Sequence[_Check], is_lent: Bools) -> str:
    """Why a rung is open or not."""
    closing = next((check for check in checks if check.closes[number]), None)
    if closing is not None:
        return closing.why(number)
    return (
        "demand is covered"
        if is_lent[number]
        else f"demand is {loads[number]:.2f} of what is left, and no surge is due"
    )
