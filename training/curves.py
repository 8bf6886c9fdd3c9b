"""How much faster a job is with more workers: measured points and Pollux' model as tables of speedups."""

from __future__ import annotations

import numpy as np

from placement.errors import InputError
from training.arrays import Floats
from training.jobs import MAX_TABLE_WORKERS, Job, Measured, Pollux


def speedup_table(job: Job, node_devices: int) -> Floats:
    """Throughput at 0, 1, .. workers against the first count that works, up to the job's most; on as few nodes as can
    be. An InputError where one it may run with has none."""
    workers = np.arange(1, min(job.most, MAX_TABLE_WORKERS) + 1)
    if isinstance(job.curve, Measured):
        points = sorted(job.curve.throughput.items())
        counts, values = np.array([0, *(w for w, _ in points)]), np.array([0.0, *(t for _, t in points)])
        rates = np.interp(workers, counts, values)
    else:
        assert isinstance(job.curve, Pollux)
        assert job.batch is not None
        from training.goodput import best_goodput

        rates = best_goodput(job.curve, job.batch, workers, np.ceil(workers / node_devices))
    asked = rates[min(job.fewest, len(rates)) - 1 :]
    if not (asked > 0).all():
        stands = job.fewest + int(np.argmin(asked > 0))
        raise InputError(f"job {job.id}: its curve comes to no speed at {stands} workers; between {_span(job)} it must")
    table: Floats = np.concatenate(([0.0], rates / rates[rates > 0][0]))
    if not np.isfinite(table).all():
        raise InputError(f"job {job.id}: its curve's speeds are too far apart")
    return table


def _span(job: Job) -> str:
    return f"{job.fewest} and {min(job.most, MAX_TABLE_WORKERS)}"
