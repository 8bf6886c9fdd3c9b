"""Folders for what lives as long as a process: sockets, meetings, files handed over. A kill leaves none for long: its
maker holds a lock on each, and those that nobody holds go when the next one comes or goes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "penstock-held-"


class Scratch:
    """There from the beginning until `remove`, or the end of a `with`; at the latest, until after this process."""

    def __init__(self) -> None:
        sweep()
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            try:
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # swept away before it was opened
                continue
            with suppress(BlockingIOError):
                _lock(self._lock)
                if self.path.exists():
                    return
            os.close(self._lock)  # swept away before it was held

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        sweep()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def sweep() -> None:
    """Remove what processes of this user that were killed have left."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # gone meanwhile, or held
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(handle).st_uid == os.getuid():
                    _lock(handle)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(handle)


def _lock(handle: int) -> None:
    """A BlockingIOError: another has it."""
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
