"""How long a job will run, by a regression tree (CART) on who runs what with which resources, and how long such jobs
ran before. Knows nothing of queues: a job counts as ended when it would have ended without waiting.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from placement.errors import InputError
from training.arrays import Floats
from training.jobs import Job

LEAVES = (4, 32, 256)
"""Jobs in a leaf of the tree, at least."""
DAY_S = 86400.0
CLOSE = 0.25
LATEST = 9
"""Runs of a kin that its median is of."""
ENOUGH = 20_000
"""Jobs that the choice of a tree's shape is made on."""
CLOSEST = -1
"""The feature that says how long the closest kin usually ran."""


@dataclass(frozen=True)
class Errors:
    """How far predictions are off, relative to the truth."""

    within_quarter: float
    """Share of the jobs with an error below 25%; of instances, where jobs are weighed by their workers."""
    median: float
    mean_log: float
    """Mean of |ln(predicted / true)|."""


def predict(history: list[Job], jobs: list[Job], every_s: float = DAY_S) -> Floats:
    """Seconds of work of `jobs`, by trees learned from the jobs before them, those of `history` first; both in order
    of arrival. A new tree is learned every so often. What a job's kin tell is up to date at its arrival, [jobs]."""
    everyone = history + jobs
    arrival = np.array([job.arrival for job in everyone], np.float64)
    work = np.array([job.work_s for job in everyone])
    if not jobs or not (arrival + work <= arrival[len(history)]).any():
        raise InputError("prediction needs jobs to predict, and before them jobs that have ended")
    table, truth, ended = features(everyone), np.log(work), arrival + work
    shape: _Shape | None = None
    predicted = np.zeros(len(everyone))
    first = len(history)
    while first < len(everyone):
        last = int(np.searchsorted(arrival, arrival[first] + every_s))
        known = ended[:first] <= arrival[first]
        seen, times = table[:first][known], truth[:first][known]
        shape = shape or _best_shape(seen, times)
        predicted[first:last] = np.exp(_Tree(seen, times, shape).predict(table[first:last]))
        first = last
    return predicted[len(history) :]


def features(jobs: list[Job]) -> Floats:
    """What the tree sees of each job: what it asks for, and of its kin that have ended how many there were and how
    long they ran, [jobs, features]"""
    past = _Past()
    running: list[tuple[float, int]] = []
    rows = []
    for number, job in enumerate(jobs):
        while running and running[0][0] <= job.arrival:
            past.add(jobs[heapq.heappop(running)[1]])
        rows.append(past.of(job))
        heapq.heappush(running, (job.arrival + job.work_s, number))
    return np.array(rows, np.float64)


def errors_of(predicted: Floats, jobs: list[Job], by_worker: bool = False) -> Errors:
    """Against what the jobs really took."""
    truth = np.array([job.work_s for job in jobs])
    weight = np.array([job.gpus for job in jobs], np.float64) if by_worker else np.ones(len(jobs))
    off = np.abs(predicted / truth - 1)
    order = np.argsort(off)
    half = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    return Errors(
        within_quarter=float(weight @ (off < CLOSE) / weight.sum()),
        median=float(off[order][half]),
        mean_log=float(weight @ np.abs(np.log(predicted / truth)) / weight.sum()),
    )


@dataclass(slots=True)
class _Ran:
    """Logarithms of seconds that jobs of one kin ran."""

    count: int = 0
    mean: float = 0.0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))

    def add(self, value: float) -> None:
        self.count += 1
        self.mean += (value - self.mean) / self.count
        self.latest.append(value)

    @property
    def usual(self) -> float:
        """The median of the latest: a run that broke off does not move it."""
        return sorted(self.latest)[len(self.latest) // 2] if self.latest else 0.0

    @property
    def last(self) -> float:
        return self.latest[-1] if self.latest else 0.0


class _Past:
    """The jobs that have ended, by kin."""

    def __init__(self) -> None:
        self._ran: dict[tuple[object, ...], _Ran] = {}
        self._all = _Ran()

    def add(self, job: Job) -> None:
        value = math.log(job.work_s)
        self._all.add(value)
        for kin in _kin(job):
            self._ran.setdefault(kin, _Ran()).add(value)

    def of(self, job: Job) -> list[float]:
        row = [
            float(job.gpus),
            float(job.share),
            float(job.cpus),
            float(job.memory),
            float(job.fewest),
            float(job.most),
        ]
        row += [float(len(job.speeds))]
        wider = self._all
        for kin in _kin(job):
            ran = self._ran.get(kin)
            # Without kin of its own, a job is like the wider kin before it.
            wider = wider if ran is None else ran
            row += [0.0 if ran is None else float(min(ran.count, LATEST)), wider.mean, wider.last, wider.usual]
        return row


class _Shape(NamedTuple):
    """Jobs in a leaf at least; whether the tree says how far from its closest kin a job is, or how long it runs."""

    leaf: int
    from_kin: bool


class _Tree:
    def __init__(self, table: Floats, truth: Floats, shape: _Shape) -> None:
        from sklearn.tree import DecisionTreeRegressor

        self._from_kin = shape.from_kin
        self._tree: Any = DecisionTreeRegressor(min_samples_leaf=min(shape.leaf, len(truth)), random_state=0)
        off = truth - self._base(table)
        leaves = self._tree.fit(table, off).apply(table)
        # A leaf's median: jobs that break off would pull its mean down.
        order = np.argsort(leaves, kind="stable")
        parts = np.split(off[order], np.flatnonzero(np.diff(leaves[order])) + 1)
        self._median = np.zeros(int(leaves.max()) + 1)
        self._median[np.unique(leaves)] = [np.median(part) for part in parts]

    def predict(self, table: Floats) -> Floats:
        return np.asarray(self._base(table) + self._median[self._tree.apply(table)], np.float64)

    def _base(self, table: Floats) -> Floats:
        base: Floats = table[:, CLOSEST] if self._from_kin else np.zeros(len(table))
        return base


def _best_shape(table: Floats, truth: Floats) -> _Shape:
    """What serves the latest fifth best, learned from what came before it."""
    table, truth = table[-ENOUGH:], truth[-ENOUGH:]
    late = len(table) * 4 // 5
    shapes = [_Shape(leaf, from_kin) for from_kin in (True, False) for leaf in LEAVES]
    if not late:
        return shapes[-1]
    wrong = [_Tree(table[:late], truth[:late], shape).predict(table[late:]) - truth[late:] for shape in shapes]
    return shapes[int(np.argmin([np.abs(off).mean() for off in wrong]))]


def _kin(job: Job) -> tuple[tuple[object, ...], ...]:
    """From the widest to the closest; names that are empty make no kin of their own."""
    shape = (job.gpus, job.share, job.cpus)
    kin: list[tuple[object, ...]] = [("model", job.model), ("group", job.group), ("user", job.user)]
    kin += [("user, shape", job.user, shape), ("user, model", job.user, job.model)]
    return (*kin, ("tag", job.tag or (job.user, job.model, shape)))
