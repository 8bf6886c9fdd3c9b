"""Writes what came of each job as CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from placement.files import replace_file
from training.outcome import Outcome

HEADER = ("id", "arrival", "first_start", "finish", "jct", "queue", "gpus", "gpu_seconds", "preemptions", "migrations")


def write_jobs(path: Path, outcome: Outcome) -> None:
    """One row a job, in order of arrival."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    columns = (
        outcome.submit,
        outcome.first_start,
        outcome.finish,
        outcome.jct,
        outcome.queue,
        outcome.gpus,
        outcome.service,
        outcome.preemptions,
        outcome.migrations,
    )
    writer.writerows(zip(outcome.ids, *(column.tolist() for column in columns), strict=True))
    replace_file(path, text.getvalue().encode())
