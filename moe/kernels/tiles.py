"""The table of tiles that were found faster on a kind of GPU than those that are shipped: filled by `penstock check
--tune`, read by the kernels. A file of the user's cache; absent, damaged or for other GPUs, what is shipped holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from placement.cache import cache_folder
from placement.errors import InputError
from placement.files import read_document, write_json

FILE_NAME = "tiles.json"


class Cut(NamedTuple):
    """How a launch is cut: the numbers of a kernel's Tile, in its order; 0 where a kernel has fewer."""

    first: int
    second: int
    third: int
    fourth: int
    fifth: int = 0


class _Table(msgspec.Struct, frozen=True):
    architectures: dict[str, dict[str, Cut]]


_trial: ContextVar[tuple[str, Cut] | None] = ContextVar("trial", default=None)


@contextmanager
def trying(key: str, cut: Cut) -> Iterator[None]:
    """Within it, a kernel is cut this way."""
    token = _trial.set((key, cut))
    try:
        yield
    finally:
        _trial.reset(token)


def tuned(key: str) -> Cut | None:
    """For the GPU of this process; None where what is shipped is best, or there is no GPU."""
    trial = _trial.get()
    if trial is not None and trial[0] == key:
        return trial[1]
    found = _cuts(architecture()) if architecture() else {}
    return found.get(key)


@cache
def architecture() -> str:
    """sm_90, gfx942 and their like; nothing where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return ""
    return architecture_of(torch.cuda.get_device_properties(0), torch.version.hip is not None)


def architecture_of(facts: Any, hip: bool) -> str:
    """Of a GPU by torch's properties of it, whose gcnArchName is the product's name where it is none of AMD's."""
    return str(facts.gcnArchName).partition(":")[0] if hip else f"sm_{facts.major}{facts.minor}"


def read_table(path: Path | None = None) -> dict[str, dict[str, Cut]]:
    try:
        return read_document(path or table_path(), _Table).architectures
    except InputError:
        return {}


def keep_cut(target: str, key: str, cut: Cut | None, path: Path | None = None) -> None:
    """In place of what the table says of this kernel on this kind of GPU; without a cut, what is shipped holds."""
    path = path or table_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    table = read_table(path)
    others = {name: found for name, found in table.get(target, {}).items() if name != key}
    write_json(path, _Table(table | {target: others if cut is None else others | {key: cut}}))


def table_path() -> Path:
    return cache_folder("tiles") / FILE_NAME


@cache
def _cuts(target: str) -> dict[str, Cut]:
    return read_table().get(target, {})
