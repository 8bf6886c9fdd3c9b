"""ANDREAS: a randomised greedy over (job, kind, count) that minimises energy plus the cost of lateness.

Jobs are taken by pressure (how little slack to the deadline is left), each gets the cheapest configuration that fits,
and what remains idle costs nothing. The first try is the plain greedy, the others disturb the order and the choice;
the cheapest of all tries is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from training.arrays import Floats, Ints
from training.view import Allocation, Information, View

JOULES_PER_LATE_S = 1000.0
WATTS = 250.0
FAR = 1e9
"""Jobs without a deadline come after all others, the shortest first."""


class Option(NamedTuple):
    """One way to run a job."""

    kind: int
    workers: int
    cost: float


@dataclass(frozen=True)
class Andreas:
    name: ClassVar[str] = "andreas"
    watts: tuple[float, ...] = ()
    """Of a busy device of each kind, in the fleet's order."""
    tries: int = 32
    seed: int = 0
    information: Information = "predicted"
    round_s: float = 0.0

    def allocate(self, view: View) -> Allocation:
        workers = np.zeros_like(view.workers)
        if not len(view):
            return Allocation(workers)
        watts = np.array(self.watts) if self.watts else np.full(len(view.capacity), WATTS)
        options = [sorted(_options(view, job, watts), key=lambda option: option.cost) for job in range(len(view))]
        late = view.now + view.remaining_s - view.deadline
        pressure = np.where(np.isfinite(late), late, -FAR - view.remaining_s)
        waits = [waiting_cost(view, job, options[job], watts) for job in range(len(view))]
        rng = np.random.default_rng([self.seed, int(view.now)])
        best: list[Option | None] = []
        least = np.inf
        for attempt in range(max(self.tries, 1)):
            noise = 0.0 if attempt == 0 else rng.normal(0.0, 1.0, len(view)) * np.maximum(view.remaining_s, 1.0)
            chosen = greedy(options, np.argsort(-(pressure + noise), kind="stable"), view.capacity, rng, attempt > 0)
            cost = sum(wait if way is None else way.cost for way, wait in zip(chosen, waits, strict=True))
            if cost < least:
                least, best = cost, chosen
        for job, option in enumerate(best):
            if option is not None:
                workers[job, option.kind] = option.workers
        return Allocation(workers)


def _options(view: View, job: int, watts: Floats) -> list[Option]:
    """Energy and lateness of each kind and count (powers of two within the job's range), in joules."""
    low, high = int(view.fewest[job]), int(view.most[job])
    counts = sorted(
        {low, high, int(view.gpus[job]), *(1 << power for power in range(low.bit_length(), high.bit_length()))}
    )
    counts = [count for count in counts if low <= count <= high]
    speeds = view.speedup_of(job, np.array(counts))
    found = []
    for kind in np.flatnonzero(view.speed[job] > 0).tolist():
        for count, speedup in zip(counts, speeds.tolist(), strict=True):
            time = float(view.remaining_s[job]) / (speedup * float(view.speed[job, kind]))
            late = max(0.0, view.now + time - float(view.deadline[job]))
            found.append(Option(kind, count, watts[kind] * count * time + JOULES_PER_LATE_S * late))
    return found


def greedy(
    options: list[list[Option]], order: Ints, capacity: Ints, rng: np.random.Generator, random: bool
) -> list[Option | None]:
    """The cheapest option that fits for each job in order; at random sometimes the next best."""
    free = capacity.copy()
    chosen: list[Option | None] = [None] * len(options)
    for job in order.tolist():
        fitting = [option for option in options[job] if option.workers <= free[option.kind]]
        if fitting:
            skip = min(int(rng.geometric(0.7)) - 1, len(fitting) - 1) if random else 0
            chosen[job] = fitting[skip]
            free[fitting[skip].kind] -= fitting[skip].workers
    return chosen


def waiting_cost(view: View, job: int, options: list[Option], watts: Floats) -> float:
    """The cheapest that a job can end at if it begins when the first of all jobs ends."""
    delay = float(view.remaining_s.min())
    slack = float(view.deadline[job]) - view.now
    costs = []
    for option in options:
        speedup = float(view.speedup_of(job, np.array([option.workers]))[0]) * float(view.speed[job, option.kind])
        time = float(view.remaining_s[job]) / speedup
        late = max(0.0, delay + time - slack)
        costs.append(watts[option.kind] * option.workers * time + JOULES_PER_LATE_S * late)
    return float(min(costs))
