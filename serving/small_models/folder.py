"""Putting a model's directory in place at once: it is written beside its place and then moved there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from placement.errors import InputError
from placement.files import replace_file
from serving.small_models.manifest import MANIFEST


def is_empty(folder: Path) -> bool:
    """Whether nothing stands in the way of making `folder`."""
    try:
        return not folder.exists() or not any(folder.iterdir())
    except OSError as error:
        raise InputError(f"{folder}: cannot be looked into: {_reason(error)}") from error


def check_replaceable(folder: Path) -> None:
    """Only a model's directory may be replaced: one with a manifest or a config.json, and no folders in it."""
    names = (MANIFEST, "config.json")
    if not any((folder / name).is_file() for name in names) or any(path.is_dir() for path in folder.iterdir()):
        raise InputError(f"{folder}: not the directory of a model; give another DIR, or remove it yourself")


def put_folder(folder: Path, files: dict[str, bytes]) -> None:
    """Make `folder` with these files, in place of what was there; killed at any time, it leaves no half of them."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
            fresh, old = Path(beside, "new"), Path(beside, "old")
            fresh.mkdir()
            for name, content in files.items():
                replace_file(fresh / name, content)
            if folder.exists():
                os.rename(folder, old)
            try:
                os.rename(fresh, folder)
            except BaseException:
                if old.exists():
                    os.rename(old, folder)
                raise
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
