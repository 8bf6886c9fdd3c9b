"""penstock.json: what a made directory is, and whether it still is. It is written last: without it, nothing is made."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from placement.errors import InputError
from placement.files import VERSION, read_document

MANIFEST = "penstock.json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing in it depends on when or how fast the model was made."""

    name: str
    seed: int
    steps: int
    settings: str
    """Digest of the settings and the seed."""
    python: str
    torch: str
    parameters: int
    measures: dict[str, Any]
    files: dict[str, str]
    """SHA-256 of each."""


def manifest_bytes(manifest: Manifest) -> bytes:
    data = {"version": VERSION, **msgspec.to_builtins(manifest)}
    return msgspec.json.format(msgspec.json.encode(data), indent=1) + b"\n"


def read_manifest(folder: Path) -> Manifest:
    return read_document(folder / MANIFEST, Manifest)


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def why_not_done(folder: Path, settings: str) -> str | None:
    """Why `folder` does not already hold the model of these settings, whole; None if it does."""
    if not (folder / MANIFEST).exists():
        return f"no {MANIFEST} in it, so it was not made here"
    try:
        manifest = read_manifest(folder)
    except InputError as error:
        return f"its manifest is of no use ({error})"
    if manifest.settings != settings:
        return f"made with other settings (seed {manifest.seed}, {manifest.steps} steps)"
    for name, expected in manifest.files.items():
        try:
            if checksum((folder / name).read_bytes()) != expected:
                return f"{name} was changed since it was made"
        except OSError:
            return f"{name} is missing"
    return None
