"""What the router counts: per model and class, plain numbers that cost little and that others turn into metrics.

Attainment is counted here and nowhere else: from `submit` to the last item.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from router.request import Priority, Reason

WINDOW_S = 60
REMEMBERED_REFUSALS = 256
REMEMBERED_ARRIVALS = 100_000


class Window:
    """How many ended in each of the last WINDOW_S seconds, and how many of them in time."""

    __slots__ = ("_ended", "_met", "_second")

    def __init__(self) -> None:
        self._second = [-1] * WINDOW_S
        self._ended = [0] * WINDOW_S
        self._met = [0] * WINDOW_S

    def add(self, now: float, met: bool) -> None:
        second = int(now)
        place = second % WINDOW_S
        if self._second[place] != second:
            self._second[place] = second
            self._ended[place] = self._met[place] = 0
        self._ended[place] += 1
        self._met[place] += met

    def sums(self, now: float) -> tuple[int, int]:
        """Ended and met."""
        recent = [place for place, second in enumerate(self._second) if second > now - WINDOW_S]
        return sum(self._ended[place] for place in recent), sum(self._met[place] for place in recent)


class ClassStatistics:
    """One model and class. A request that a client cancelled counts as neither met nor missed."""

    __slots__ = (
        "arrivals",
        "met",
        "not_served",
        "retried",
        "running",
        "served",
        "tokens_queued",
        "waiting",
        "window",
    )

    def __init__(self) -> None:
        self.arrivals = self.served = self.met = self.retried = 0
        self.waiting = self.running = self.tokens_queued = 0
        self.not_served: dict[Reason, int] = {}
        self.window = Window()

    @property
    def judged(self) -> int:
        """How many have ended in time or not."""
        return self.served + sum(self.not_served.values()) - self.not_served.get("cancelled", 0)

    def attainment(self, now: float) -> float | None:
        """Share of those who ended within the window that were in time; None if none did."""
        ended, met = self.window.sums(now)
        return met / ended if ended else None

    def goodput_per_s(self, now: float) -> float:
        return self.window.sums(now)[1] / WINDOW_S

    def end_without(self, reason: Reason, now: float) -> None:
        self.not_served[reason] = self.not_served.get(reason, 0) + 1
        if reason != "cancelled":
            self.window.add(now, met=False)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not served: what was weighed."""

    at: float
    request: str
    model: str
    priority: Priority
    tenant: str
    reason: Reason
    message: str
    tokens: int
    deadline: float
    """When its last stage, or its first token, had to be done."""
    predicted: float | None
    """When it would have been, by the replica that is first; None where none has been reckoned."""
    retry_after_s: float | None
    waiting: int
    replicas: tuple[tuple[str, float], ...] = ()
    """The alternatives: groups that hold the model, and when each is free of all that is scheduled."""


class Arrival(NamedTuple):
    """For planning anew."""

    at: float
    model: str
    tokens: int
    max_tokens: int


@dataclass(slots=True)
class Statistics:
    """Everything counted. `classes`: by (model, priority), made when the first request of it comes."""

    classes: dict[tuple[str, Priority], ClassStatistics] = field(default_factory=dict)
    refusals: deque[Refusal] = field(default_factory=lambda: deque(maxlen=REMEMBERED_REFUSALS))
    arrived: deque[tuple[float, str, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED_ARRIVALS))
    """Plain tuples, which the garbage collector does not look at again; `arrivals` names their parts."""
    displaced: int = 0
    settled: int = 0

    def arrivals(self, since: float = 0.0) -> list[Arrival]:
        """The last ones, in order, from a time on."""
        return [Arrival(*one) for one in self.arrived if one[0] >= since]

    @property
    def missed(self) -> int:
        """How many were not answered in time, ever."""
        return sum(one.judged - one.met for one in self.classes.values())

    def of(self, model: str, priority: Priority) -> ClassStatistics:
        key = (model, priority)
        found = self.classes.get(key)
        if found is None:
            found = self.classes[key] = ClassStatistics()
        return found

    def summary(self, now: float) -> dict[str, Any]:
        """Of each model and class, as plain values."""
        return {
            f"{model}/{priority}": {
                "arrivals": one.arrivals,
                "served": one.served,
                "met": one.met,
                "not_served": dict(one.not_served),
                "waiting": one.waiting,
                "running": one.running,
                "tokens_queued": one.tokens_queued,
                "attainment": one.attainment(now),
                "goodput_per_s": one.goodput_per_s(now),
            }
            for (model, priority), one in self.classes.items()
        }
