"""Brings a model's directory to a machine that lacks it, once, from wherever fsspec reads: s3://, http://, file://.

Only what a model is made of comes along (texts and safetensors): nothing that would have to be unpickled.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from placement.errors import InputError

KEPT = (".json", ".safetensors", ".txt", ".jinja", ".model")


def fetch_all(sources: Mapping[str, str]) -> list[str]:
    """`sources`: where each directory comes from; those that had to be fetched."""
    return [path for path, url in sources.items() if fetch(url, Path(path))]


def fetch(url: str, directory: Path) -> bool:
    """Whether it had to be; processes of a machine that ask for the same one wait for the first. An InputError says why
    it cannot be had."""
    if (directory / "config.json").is_file():
        return False
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with (directory.parent / f".{directory.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (directory / "config.json").is_file():
                return False
            _bring(url, directory)
    except OSError as error:
        raise InputError(f"{directory}: cannot be fetched from {url}: {error.strerror or error}") from error
    return True


def _bring(url: str, directory: Path) -> None:
    """Beside its place first: a directory is whole, or not there."""
    import fsspec

    part = directory.parent / f".{directory.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        files, root = fsspec.core.url_to_fs(url)
        found = [name for name in files.find(root) if PurePosixPath(name).suffix in KEPT]
        for name, place in [(name, _place(name, root, part, url)) for name in found]:
            place.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(name, str(place))
    except (ImportError, ValueError) as error:  # a scheme that needs a package, or that nobody knows
        raise InputError(f"{directory}: cannot be fetched from {url}: {error}") from error
    if not (part / "config.json").is_file():
        shutil.rmtree(part, ignore_errors=True)
        raise InputError(f"{directory}: there is no config.json at {url}, so no model to fetch")
    with suppress(OSError):
        directory.rmdir()  # an empty one may have been made for it
    part.rename(directory)


def _place(name: str, root: str, directory: Path, url: str) -> Path:
    """Of a file within the directory; a listing may name what is outside, and is not believed."""
    inner = PurePosixPath(name).relative_to(PurePosixPath(root))
    place = directory / inner
    if ".." in inner.parts or not place.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{url} lists {inner}, which is outside the model's directory: nothing is fetched")
    return place
