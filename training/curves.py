"""How much faster a job is with more workers: measured points and Pollux' model as tables of speedups."""

from __future__ import annotations

import numpy as np

from training.arrays import Floats
from training.jobs import MAX_TABLE_WORKERS, Job, Measured, Pollux


def speedup_table(job: Job, node_devices: int) -> Floats:
    """Throughput at 0, 1, .. workers against one, up to the job's most; its workers on as few nodes as can be."""
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
    return np.concatenate(([0.0], rates / rates[0]))
