"""Clockwork++ of AlpaServe's paper: selective replication planned anew for every window, with free swaps
and with knowledge of the window's own arrivals. An idealised bound on what swapping models could give: for
comparison only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from placement.clocks import Bools, Floats, Ints
from placement.dispatch import SERVED, new_state
from placement.errors import InputError
from placement.problem import Problem
from placement.search.alpaserve import replication
from placement.search.candidate import Candidate, Space
from placement.simulator import new_records, serve_shortest_queue
from placement.tables import Catalogue
from placement.workload import Workload

WINDOW_S = 60.0


@dataclass(frozen=True)
class Swapped:
    """What came of it: `met` [n], which requests were answered within their SLO; the candidate of each
    window that had requests."""

    problem: Problem
    workload: Workload
    met: Bools
    windows: tuple[Candidate, ...]

    @property
    def attainment(self) -> float:
        return float(self.met.mean())

    @property
    def model_attainment(self) -> Floats:
        """[models]; NaN for a model without requests."""
        models = len(self.problem.models)
        counts = self.workload.counts(models)
        met = np.bincount(self.workload.model, weights=self.met, minlength=models)
        each: Floats = np.divide(met, counts, out=np.full(models, np.nan), where=counts > 0)
        return each


def clockwork(problem: Problem, workload: Workload | None = None, window_s: float = WINDOW_S) -> Swapped:
    """Serve the workload (the problem's own by default) window by window under `shortest-queue`. The groups
    stay as they are and keep their clocks; only which models they hold changes, at no cost."""
    if not 0 < window_s < np.inf:
        raise InputError(f"window of {window_s:g} seconds; it must be a finite number above 0")
    if chat := next((model.name for model in problem.models if model.generates), None):
        raise InputError(f"clockwork plans one-pass models only, and {chat!r} generates")
    workload = problem.workload if workload is None else workload
    met = np.zeros(len(workload), np.bool_)
    served = np.zeros(len(problem.models), np.int64)
    plans: list[Candidate] = []
    clocks = None
    for rows in _windows(workload.arrival, window_s):
        window = workload.select(rows)
        space = Space(Catalogue(replace(problem, workload=_from_zero(window))))
        candidate = replication(space, "shortest-queue")
        assert not plans or plans[0].classes == candidate.classes  # the layout asks for no traffic
        if clocks is None:
            clocks = new_state(len(candidate.classes), space.catalogue.stages, 0, 0).clocks
        records = new_records(len(window))
        serve_shortest_queue(window.arrival, window.model, space.tables(candidate), clocks, served, records)
        met[rows] = records.status == SERVED
        plans.append(candidate)
    return Swapped(problem, workload, met, tuple(plans))


def _windows(arrival: Floats, window_s: float) -> Iterator[Ints]:
    """The requests of each window that has any."""
    window = np.floor(arrival / window_s)
    starts: Ints = np.flatnonzero(np.diff(window, prepend=-1.0) > 0)
    for begin, end in zip(starts, [*starts[1:], len(arrival)], strict=True):
        yield np.arange(begin, end)


def _from_zero(window: Workload) -> Workload:
    """The window by itself, as its plan is searched: on idle devices."""
    return replace(window, arrival=window.arrival - window.arrival[0])
