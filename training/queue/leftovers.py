"""Ends what is left of jobs that hold no devices: runs that waited in memory when their controller was killed."""

from __future__ import annotations

import signal
from pathlib import Path

from training.queue.command_runner import FOLDER
from training.queue.errors import NoSuchJob
from training.queue.processes import send, with_any
from training.queue.states import HOLDING
from training.queue.store import Store


def end_leftovers(store: Store, folder: Path) -> list[str]:
    """The store's jobs with folders below this one that had some. The machine is looked at before the store: a job is
    claimed before it has processes."""
    ended = []
    for place, processes in with_any(FOLDER).items():
        job = Path(place)
        if job.parent != folder or not _is_waiting(store, job.name):
            continue
        for process in processes:
            send(process, signal.SIGKILL)
        ended.append(job.name)
    return ended


def _is_waiting(store: Store, job: str) -> bool:
    """Or has ended; a job of another store is not known here."""
    try:
        return store.get(job).state not in HOLDING
    except NoSuchJob:
        return False
