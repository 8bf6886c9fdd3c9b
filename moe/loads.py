"""Expert loads from a file: [layers, experts], and the recent batches they come from where the file has them.

.npz with `load` [layers, experts] and perhaps `history` [batches, layers, experts]; .npy of either; .json with the same
names, or one table; .csv with one layer a line.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from moe.archive import unpacked
from moe.arrays import Floats
from moe.replication.base import check_load
from placement.errors import InputError
from placement.files import check_version, read_bytes

KINDS = (".npz", ".npy", ".json", ".csv")
MAX_ENTRIES = 100_000_000


@dataclass(frozen=True)
class Loads:
    load: Floats
    """[layers, experts]"""
    history: Floats | None = None
    """[batches, layers, experts]"""


def read_loads(path: Path) -> Loads:
    """An InputError names the file and what is wrong with it."""
    if path.suffix not in KINDS:
        raise InputError(f"{path}: loads are {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    raw = read_bytes(path)
    try:
        fields = _fields(path, raw)
        tables = {name: _table(fields[name]) for name in ("load", "history") if fields.get(name) is not None}
        return _loads(tables)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _fields(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        if path.suffix == ".npz":
            return dict(unpacked(raw, 8 * MAX_ENTRIES, ("load", "history")))
        if path.suffix == ".npy":
            return _named(np.load(io.BytesIO(raw), allow_pickle=False))
        if path.suffix == ".csv":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an empty file is refused below
                return {"load": np.loadtxt(io.StringIO(raw.decode()), delimiter=",", ndmin=2)}
        data = msgspec.json.decode(raw)
        if isinstance(data, dict):
            check_version(data.pop("version", 1), path)
            return data
        return _named(np.array(data, np.float64))
    except (ValueError, TypeError, KeyError, EOFError, OSError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"not a readable {path.suffix} of loads: {reason}") from error


def _named(table: Any) -> dict[str, Any]:
    return {"history" if table.ndim == 3 else "load": table}


def _table(value: Any) -> Floats:
    try:
        table = np.asarray(value)
    except ValueError as error:
        raise InputError("rows of different lengths; expected [layers][experts]") from error
    if table.dtype.kind not in "iufb":
        raise InputError("expected numbers, [layers][experts]")
    return np.ascontiguousarray(table, np.float64)


def _loads(tables: dict[str, Floats]) -> Loads:
    load, history = tables.get("load"), tables.get("history")
    if history is not None:
        if history.ndim != 3 or len(history) == 0:
            raise InputError(f"history has the shape {history.shape}; expected [batches, layers, experts]")
        for batch in history:
            check_load(batch)
        load = history.mean(axis=0) if load is None else load
    if load is None:
        raise InputError("has no `load` [layers, experts]")
    check_load(load)
    if history is not None and history.shape[1:] != load.shape:
        raise InputError(f"history is for {history.shape[1:]}, load for {load.shape}: layers and experts must agree")
    return Loads(load, history)
