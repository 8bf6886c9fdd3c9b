"""When a job last wrote a checkpoint: by the files that are there, whatever wrote them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from training.queue.record import Record

CHECKPOINT = "checkpoint"
"""The folder, below the job's."""


def saved_at(record: Record) -> float:
    """Unix seconds; of a job that never did, when it was started last."""
    started = record.observed.last_start or record.submitted
    times = [started]
    with suppress(OSError), os.scandir(Path(str(record.folder)) / CHECKPOINT) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # a later one has taken its place
                times.append(entry.stat().st_mtime)
    return max(times)
