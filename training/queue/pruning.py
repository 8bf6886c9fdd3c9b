"""Forgetting jobs that ended long ago: their rows, events and folders. One that has not ended is never touched."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from placement.errors import InputError
from training.queue.rows import SELECT, to_record
from training.queue.store import Store

DAY_S = 86400.0


def prune(store: Store, days: float) -> list[str]:
    """The ids of the jobs that ended more than so many days ago and are gone now."""
    before = time.time() - days * DAY_S
    with store.database.read() as transaction:
        rows = transaction.all(f"{SELECT} WHERE ended IS NOT NULL AND ended < ? ORDER BY number", before)
    gone = []
    for record in map(to_record, rows):
        # The folder first: a row without one is found again, a folder without a row would be a new job's checkpoint.
        if record.folder is not None:
            _remove(Path(record.folder), record.id)
        with store.database.write() as transaction:
            transaction.run("DELETE FROM jobs WHERE id = ? AND ended IS NOT NULL", record.id)  # and, by it, its events
        gone.append(record.id)
    return gone


def _remove(folder: Path, job: str) -> None:
    assert folder.name == job, "a job's folder has its name"
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"job {job}: its folder {folder} cannot be removed: {why}; the job is kept") from error
