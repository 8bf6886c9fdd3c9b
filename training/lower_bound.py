"""How little mean queueing any schedule can have: a linear program that knows all arrivals and may cut jobs at will.

Work x[j, t] of job j in interval t, at most its GPUs times the interval's length, in all what the cluster has. A job
ends at least half its duration after the mean time of its work, so the least sum of those mean times bounds the sum
of ends from below. Work counts as done at the beginning of its interval: the bound holds, and is better the finer
the grid. One kind of device, no elasticity.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import linprog

from training.jobs import Job

sparse: Any = scipy.sparse


def least_mean_queue(jobs: list[Job], gpus: int, intervals: int = 250) -> float:
    """Seconds; 0 where the program says nothing."""
    arrival = np.array([job.arrival for job in jobs], np.float64)
    length = np.array([job.work_s for job in jobs])
    width = np.array([job.gpus for job in jobs], np.float64)
    begin = float(arrival.min())
    # Long enough for any schedule that leaves no device idle while somebody waits.
    end = float(arrival.max()) + float((length * width).sum()) / gpus + float(length.max())
    edges = np.linspace(begin, end, intervals + 1)
    step = edges[1] - edges[0]
    first = np.searchsorted(edges, arrival, side="right") - 1
    # A job may work in the part of its first interval that is after its arrival.
    job = np.repeat(np.arange(len(jobs)), intervals - first)
    slot = np.concatenate([np.arange(at, intervals) for at in first])
    start = np.maximum(edges[slot], arrival[job])
    room = width[job] * (edges[slot + 1] - start)
    work = length * width
    columns = np.arange(len(job))
    exact = sparse.csr_array((np.ones(len(job)), (job, columns)), shape=(len(jobs), len(job)))
    shared = sparse.csr_array((np.ones(len(job)), (slot, columns)), shape=(intervals, len(job)))
    solve: Any = linprog
    found = solve(
        (start - arrival[job]) / work[job],
        A_ub=shared,
        b_ub=np.full(intervals, gpus * step),
        A_eq=exact,
        b_eq=work,
        bounds=np.column_stack((np.zeros(len(job)), room)),
        method="highs-ipm",
    )
    assert found.status == 0, found.message
    return max(0.0, (float(found.fun) - float(length.sum()) / 2) / len(jobs))
