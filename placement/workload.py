"""Arrivals as the planner reads them: when each request came, for which model, with how many tokens."""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from placement.errors import InputError

MAX_REQUESTS = 100_000_000

# What reading a damaged archive can raise.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    RuntimeError,  # encrypted; and NotImplementedError: of another zip version
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Workload:
    """arrival float64 [n], ascending; model int32 [n], index into the problem's models; for generating models also
    prompt_tokens and output_tokens int32 [n] (what really came)."""

    arrival: NDArray[np.float64]
    model: NDArray[np.int32]
    prompt_tokens: NDArray[np.int32] | None = None
    output_tokens: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def duration(self) -> float:
        """Seconds from time 0 to the last arrival."""
        return float(self.arrival[-1]) if len(self) else 0.0

    def counts(self, models: int) -> NDArray[np.int64]:
        """Requests per model, int64 [models]."""
        return np.bincount(self.model, minlength=models)

    def faster(self, scale: float) -> Workload:
        """The same requests at `scale` times the rate."""
        return replace(self, arrival=self.arrival / scale)

    def select(self, keep: NDArray[Any]) -> Workload:
        """The requests that `keep` (a mask or indices, in time order) chooses."""
        prompt, output = self.prompt_tokens, self.output_tokens
        return Workload(
            self.arrival[keep],
            self.model[keep],
            None if prompt is None else prompt[keep],
            None if output is None else output[keep],
        )


def read_workload(path: Path, models: int) -> Workload:
    """Read a .npz; an InputError names the file, the field and the first request that is wrong."""
    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as data:
            fields = {name: data[name] for name in data.files}
    except _UNREADABLE as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else "not a readable .npz file"
        raise InputError(f"{path}: {reason}; expected `arrival` and `model` written by numpy.savez") from error
    for name in ("arrival", "model"):
        if name not in fields:
            raise InputError(f"{path}: has no `{name}`; expected `arrival` (seconds) and `model` (index)")
    return check_workload(fields, models, str(path))


def check_workload(fields: dict[str, NDArray[Any]], models: int, where: str) -> Workload:
    """The arrays as a Workload, each value checked."""
    arrival = _column(fields["arrival"], "arrival", where)
    if not 1 <= len(arrival) <= MAX_REQUESTS:
        raise InputError(f"{where}: arrival: {len(arrival)} requests; between 1 and {MAX_REQUESTS} are supported")
    if (bad := ~np.isfinite(arrival) | (arrival < 0)).any():
        _refuse(where, "arrival", bad, arrival, "arrivals are finite seconds from 0")
    if (bad := np.diff(arrival, prepend=0.0) < 0).any():
        _refuse(where, "arrival", bad, arrival, "arrivals must ascend")
    model = _column(fields["model"], "model", where, len(arrival))
    if (bad := (model < 0) | (model >= models) | (model != np.floor(model))).any():
        _refuse(where, "model", bad, model, f"the problem's models are 0 to {models - 1}")
    tokens = {}
    for name in ("prompt_tokens", "output_tokens"):
        if name in fields:
            column = _column(fields[name], name, where, len(arrival))
            if (bad := (column < 0) | (column > 2**31 - 1) | (column != np.floor(column))).any():
                _refuse(where, name, bad, column, "token counts are whole numbers (0 where nothing is generated)")
            tokens[name] = column.astype(np.int32)
    if len(tokens) == 1:
        raise InputError(f"{where}: has only one of prompt_tokens and output_tokens; generation needs both")
    return Workload(arrival, model.astype(np.int32), tokens.get("prompt_tokens"), tokens.get("output_tokens"))


def _column(column: NDArray[Any], name: str, where: str, length: int | None = None) -> NDArray[np.float64]:
    if column.ndim != 1 or column.dtype.kind not in "iuf":
        raise InputError(f"{where}: {name}: expected one column of numbers, got {column.dtype} {column.shape}")
    if length is not None and len(column) != length:
        raise InputError(f"{where}: {name}: {len(column)} entries for {length} arrivals")
    return np.ascontiguousarray(column, dtype=np.float64)


def _refuse(where: str, name: str, bad: NDArray[np.bool_], column: NDArray[np.float64], right: str) -> NoReturn:
    index = int(np.argmax(bad))
    raise InputError(f"{where}: {name}[{index}] is {column[index]:g}; {right}")
