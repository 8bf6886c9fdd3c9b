"""An upper bound on the attainment that any plan could reach, whatever its groups, shapes, batches and memory.

All devices are taken as one machine that may be shared and interrupted at will, and every request as the least device
time that any shape and batch size asks for it; generating ones are taken as served. Even then, of the requests that
arrive and fall due inside an interval
no more can be served than the machine has time for; the excesses of disjoint intervals add up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placement.clocks import Bools, Floats, Ints
from placement.compiled import entry_point
from placement.problem import Problem
from placement.tables import Catalogue
from placement.workload import Workload

_LONGEST = 4000
"""Requests in one interval at most: longer ones are rarely over-full, and the work grows with it."""


def upper_bound(problem: Problem, workload: Workload | None = None, max_batch: int = 16) -> float:
    """Attainment that no plan exceeds on this workload."""
    workload = problem.workload if workload is None else workload
    catalogue = Catalogue(problem)
    work, quickest = _least(catalogue, max_batch)
    slack = np.array([model.slo.first_token for model in problem.models]) - problem.overhead
    generates = np.array([model.generates for model in problem.models])
    hopeless = (slack < quickest) & ~generates
    keep = ~(hopeless | generates)[workload.model]
    arrival, model = workload.arrival[keep], workload.model[keep]
    deadline = arrival + slack[model]
    order = np.argsort(deadline, kind="stable")
    missed = np.zeros(1, np.int64)
    best = np.zeros(len(order) + 1, np.int64)
    _disjoint_excess(
        arrival,
        np.ascontiguousarray(arrival[order]),
        np.ascontiguousarray(deadline[order]),
        np.ascontiguousarray(work[model][order]),
        float(len(problem.cluster.devices)),
        best,
        missed,
    )
    certain = int(hopeless[workload.model].sum())
    return 1.0 - (certain + int(missed[0])) / max(len(workload), 1)


def _least(catalogue: Catalogue, max_batch: int) -> tuple[Floats, Floats]:
    """[models] least device-seconds of a request, and least seconds through all stages."""
    latency = catalogue.latency
    sizes = catalogue.batch_size <= max(max_batch, 1)
    stages = np.array([entry.shape.pp for entry in catalogue.classes])
    tp = np.array([entry.shape.tp for entry in catalogue.classes])
    inside: Bools = np.arange(catalogue.stages)[None, :] < stages[:, None]
    total = np.where(inside[:, None, None, :], latency, 0.0).sum(axis=3)
    each = (total * tp[:, None, None] / catalogue.batch_size)[:, :, sizes]
    least: Floats = each.min(axis=(0, 2))
    quickest: Floats = total[:, :, 0].min(axis=0)
    return least[catalogue.profile_of_model], quickest[catalogue.profile_of_model]


@entry_point
def _disjoint_excess(
    starts: Floats,
    arrival: Floats,
    deadline: Floats,
    work: Floats,
    devices: float,
    best: Ints,
    missed: NDArray[np.int64],
) -> None:
    """`starts`: arrivals in order; the other arrays by deadline. best[k]: requests missed for certain in disjoint
    intervals that end by the k-th deadline."""
    count = deadline.size
    ended = 0  # deadlines that lie before the interval's start
    before = 0  # the most missed in intervals that end by then
    for first in range(count):
        begin = starts[first]
        while ended < count and deadline[ended] <= begin:
            ended += 1
            before = max(before, best[ended])
        inside = 0.0
        largest = 0.0
        for k in range(ended, min(count, ended + _LONGEST)):
            if arrival[k] < begin:
                continue
            inside += work[k]
            largest = max(largest, work[k])
            excess = inside - devices * (deadline[k] - begin)
            if excess > 1e-9 * largest:
                lost = before + np.int64(np.ceil(excess / largest - 1e-9))
                best[k + 1] = max(best[k + 1], lost)
    for k in range(count + 1):
        missed[0] = max(missed[0], best[k])
