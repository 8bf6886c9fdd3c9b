"""Penstock's own: short and narrow jobs first; elastic jobs run with their base and grow onto what is left.

A few jobs are run ahead in the orders of remaining time x GPUs^power, which weigh short jobs against narrow ones (0:
remaining time, 1: remaining service), and the one in which they are gone soonest is taken. Where that costs those
present nothing together, short and wide jobs then go first: whoever comes next will more easily pass a narrow one.
With more jobs, least remaining service first, where time counts less and less beyond what the work at hand takes.
Without durations: whoever is likeliest to end soon for the GPUs it takes, learned from the jobs that have ended;
before enough have, two queues by attained service, and within one whoever ran longest for its GPUs first: it is
nearest to its end, and the narrower needs less to get there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.ahead import ABOVE, EQUAL, Room, let_pass, time_there
from training.arrays import Floats, Ints
from training.ending import cell_of, index_by_width, until_next_cell, width_of
from training.growing import bases, better_elsewhere, grown
from training.ordering import in_order
from training.policies.tiresias_las import TiresiasLas
from training.view import Allocation, Information, View

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
WISH = -1.0
"""The power by which jobs pass others where that costs nothing."""
FEW = 128
"""The most jobs that are run ahead."""
HORIZON = 1.25
"""How far ahead to look, in times of the longest remaining: later, those to come will have changed everything."""
SPAN, LESS = 0.1, 0.6
"""With more jobs: from which part of the time that all work at hand takes on a job's time counts less, and by which
power of it."""
_INSTANT = 1e-9
"""Seconds, where nothing is left of anybody."""
OUTLIVED = 0.25
"""Of what a job has done: what it is believed to need still, once it outlives its prediction."""
ENOUGH, LATEST = 1000, 4096
"""Ended jobs from which on their running times are believed, and how many of the latest count."""
PAUSE_S = 60.0
"""Before it decides again only because somebody ran longer: there are many, and each changes little."""
QUEUES = TiresiasLas(thresholds=(3 * 3600.0,))
"""Before enough is known of durations, in GPU-seconds."""
AGEING, AGED = 0.1, 1800.0
"""What a second of waiting counts as running within a queue, and the most it counts in all."""


@dataclass(frozen=True)
class Penstock:
    name: ClassVar[str] = "penstock"
    strict: bool = False
    elastic: bool = True
    information: Information = "oracle"
    round_s: float = 0.0

    def allocate(self, view: View) -> Allocation:
        if self.information == "none":
            return self._blind(view)
        left = work_left(view)
        place = np.empty(len(view))
        place[soonest_gone(left, view.gpus, int(view.capacity.sum()))] = np.arange(len(view))
        if not self.elastic or (view.fewest == view.most).all():
            return Allocation(in_order(view, place, self.strict, migrates=better_elsewhere(view, left)))
        return Allocation(grown(view, bases(view, place, preemptive=True, left=left), left))

    def _blind(self, view: View) -> Allocation:
        if len(view.finished) < ENOUGH:
            workers = self._served(view, _by_service(view))
            return Allocation(workers, wake=QUEUES.wake(view, workers))
        workers = self._served(view, _by_chance(view))
        pause = max(until_next_cell(view.run_s[workers.any(axis=1)]), PAUSE_S)
        return Allocation(workers, wake=view.now + pause)

    def _served(self, view: View, key: Floats) -> Ints:
        """Bases in that order, and growth onto what is left: where nobody knows what is left to do, by speed alone."""
        if not self.elastic or (view.fewest == view.most).all():
            return in_order(view, key, self.strict)
        return grown(view, bases(view, key, preemptive=True), np.ones(len(view)))


def work_left(view: View) -> Floats:
    """Seconds of work left; of a job that outlives its prediction, a part of what it has done, [n]"""
    if view.information == "oracle":
        return view.remaining_s
    return np.maximum(view.remaining_s, OUTLIVED * view.progress)


def soonest_gone(left: Floats, gpus: Ints, capacity: int) -> Ints:
    """The jobs in the order in which to serve them, [n]"""
    if len(left) > FEW or gpus.sum() <= capacity:
        return np.argsort(claim(left, gpus, capacity), kind="stable")
    return run_ahead(left, gpus, max(capacity, int(gpus.max())))


def claim(left: Floats, gpus: Ints, capacity: int) -> Floats:
    """What each job would take from the others, less of it the later: who outlasts the queue stands in the way of
    those here now, not of those after, so that of long jobs the narrow ones harm least, [n]"""
    service = left * gpus
    span = max(SPAN * float(service.sum()) / max(capacity, 1), _INSTANT)
    taken: Floats = service / (1 + left / span) ** LESS
    return taken


def run_ahead(left: Floats, gpus: Ints, capacity: int) -> Ints:
    """The best of the orders by power, then with those in front who cost nobody."""
    width = gpus.astype(np.float64)
    horizon, scratch = HORIZON * float(left.max()), Room.of(len(left))
    best, least = np.arange(len(left)), ABOVE
    for power in POWERS:
        order = np.argsort(left * width**power, kind="stable")
        found = time_there(order, left, gpus, capacity, horizon, least * (1 - EQUAL), scratch)
        if found < least * (1 - EQUAL):
            best, least = order, found
    wish = np.argsort(left * width**WISH, kind="stable")
    let_pass(best, wish, left, gpus, capacity, horizon, least, scratch)
    return best


def _by_chance(view: View) -> Floats:
    """By the chance to end soon for the devices it takes, to a factor of two; of equals, who came first."""
    ended_s, ended_gpus = view.past_runs(LATEST)
    width = width_of(np.concatenate((ended_gpus, view.gpus)))
    index = index_by_width(np.concatenate((ended_s, view.run_s)), width, len(ended_s))
    mine = width[len(ended_s) :]
    return -np.floor(np.log2(index[mine, cell_of(view.run_s)] * np.exp2(mine) / view.gpus))


def _by_service(view: View) -> Floats:
    """By queue; within one, who ran longest for its GPUs first, and what has waited counts a little."""
    aged = view.run_s / view.gpus + np.minimum(AGEING * (view.now - view.submit - view.run_s), AGED)
    order = np.lexsort((-aged, QUEUES.key(view)))
    place = np.empty(len(view))
    place[order] = np.arange(len(view))
    return place
