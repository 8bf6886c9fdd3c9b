"""Measured models, kept for the next time under a name that says what was measured where and how."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from placement.cache import cache_folder
from placement.errors import InputError
from placement.files import read_document, write_json
from serving.profiler.results import MeasuredModel

METHOD = 3
"""Counts up when measuring, or what is measured, changes so that earlier results no longer hold."""


def default_folder() -> Path:
    return cache_folder("profiles")


def model_digest(directory: Path, **how: Any) -> str:
    """Of a model's files (what config.json says, size and time of the weights) and of how and where it is measured."""
    weights = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in directory.glob("*.safetensors")]
    config = (directory / "config.json").read_bytes()
    whole = msgspec.json.encode([METHOD, hashlib.sha256(config).hexdigest(), sorted(weights), how], order="sorted")
    return hashlib.sha256(whole).hexdigest()[:32]


class Cache:
    """A folder of results; without a folder, nothing is found and nothing kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, digest: str) -> MeasuredModel | None:
        if self._folder is None or not (path := self._folder / f"{digest}.json").is_file():
            return None
        try:
            return read_document(path, MeasuredModel)
        except InputError:  # damaged, or of another version: measured again, and replaced
            return None

    def keep(self, digest: str, measured: MeasuredModel) -> None:
        """A folder that cannot be written is no reason to fail: the results are there."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(self._folder / f"{digest}.json", measured)
        except (OSError, InputError):
            return
