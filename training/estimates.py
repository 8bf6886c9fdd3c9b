"""What policies are told of durations: the truth, or the truth with an error. Prediction proper is prediction.py."""

from __future__ import annotations

import numpy as np

from placement.errors import InputError
from training.arrays import Floats
from training.jobs import Job

MAX_SIGMA = 10.0


def with_error(jobs: list[Job], sigma: float, seed: int = 0) -> Floats:
    """Seconds of work of each job times log-normal noise with that sigma (0: the truth), [jobs]"""
    if not 0 <= sigma <= MAX_SIGMA:
        raise InputError(f"error {sigma:g}: expected a sigma between 0 and {MAX_SIGMA:g}")
    work = np.array([job.work_s for job in jobs])
    return work * np.exp(sigma * np.random.default_rng(seed).standard_normal(len(jobs)))
