"""The checkpoints of one job: a folder of files, each named by its step and the checksum of all its bytes.

A file gets its name when all of it is on the disk, so that one that is torn has either no name or a wrong checksum.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from placement.errors import InputError
from training.elastic.checkpoint_names import CheckpointName, names_in
from training.elastic.state import State, unpack

_UNNAMED = ".writing-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoints:
    folder: Path
    keep: int
    """How many there are at most, beside those that are newer than the last one written."""

    def write(self, step: int, state: bytes) -> Path:
        """An OSError: it could not be written, and those before it are still there. Those that are newer, of a job
        that went back, stay too."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / str(CheckpointName(step, _checksum(state)))
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=_UNNAMED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _sync(self.folder)
        upto = [name for name in names_in(self.folder) if name.step <= step]
        for old in upto[self.keep :]:
            (self.folder / str(old)).unlink(missing_ok=True)
        return path

    def latest(self, beyond: int = -1) -> State | None:
        """The newest that is whole and has more steps; those that are not whole are passed over, and said so."""
        return next(self._whole(beyond), None)

    def torn(self) -> list[str]:
        """The names of those that are not whole."""
        torn = []
        for name in names_in(self.folder):
            try:
                self._read(name)
            except FileNotFoundError:  # a later one has taken its place
                continue
            except (InputError, OSError):
                torn.append(str(name))
        return torn

    def sweep(self) -> None:
        """Remove what a killed worker left half-written; nobody may be writing."""
        for path in self.folder.glob(f"{_UNNAMED}*"):
            path.unlink(missing_ok=True)

    def _whole(self, beyond: int) -> Iterator[State]:
        for name in names_in(self.folder):
            if name.step <= beyond:
                return
            try:
                yield self._read(name)
            except (InputError, OSError) as error:
                _log.warning("%s is passed over: %s", name, error)

    def _read(self, name: CheckpointName) -> State:
        data = (self.folder / str(name)).read_bytes()
        if _checksum(data) != name.checksum:
            raise InputError("its checksum is wrong")
        return unpack(data)


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _sync(folder: Path) -> None:
    """The name itself is on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
