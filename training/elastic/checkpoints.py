"""The checkpoints of one job: a folder of files, each named by its step and the checksum of all its bytes.

A file gets its name when all of it is on the disk, so that one that is torn has either no name or a wrong checksum.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from placement.errors import InputError
from training.elastic.state import State, unpack

_NAME = re.compile(r"step-([0-9]{10})-([0-9a-f]{32})\.safetensors")
_UNNAMED = ".writing-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoints:
    folder: Path
    keep: int
    """How many there are at most."""

    def write(self, step: int, state: bytes) -> Path:
        """An OSError: it could not be written, and those before it are still there."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / f"step-{step:010d}-{_checksum(state)}.safetensors"
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
        for old in self._paths()[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def latest(self) -> State | None:
        """The newest that is whole; those that are not are passed over, and said so."""
        return next(self._whole(), None)

    def torn(self) -> list[str]:
        """The names of those that are not whole."""
        torn = []
        for path in self._paths():
            try:
                _read(path)
            except FileNotFoundError:  # a later one has taken its place
                continue
            except (InputError, OSError):
                torn.append(path.name)
        return torn

    def sweep(self) -> None:
        """Remove what a killed worker left half-written; nobody may be writing."""
        for path in self.folder.glob(f"{_UNNAMED}*"):
            path.unlink(missing_ok=True)

    def _whole(self) -> Iterator[State]:
        for path in self._paths():
            try:
                yield _read(path)
            except (InputError, OSError) as error:
                _log.warning("%s is passed over: %s", path.name, error)

    def _paths(self) -> list[Path]:
        """Newest first."""
        try:
            return sorted((path for path in self.folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
        except FileNotFoundError:
            return []


def _read(path: Path) -> State:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    data = path.read_bytes()
    if _checksum(data) != found[2]:
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
