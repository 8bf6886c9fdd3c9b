"""Readers of traces of single requests: our workload .npz and the Azure LLM trace of 2023 as .csv or .csv.gz.

A broken file is refused with one line that names the file and the line or field.
"""

import csv
import gzip
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import TrafficError
from loadgen.tokens import MOST_TOKENS
from loadgen.workload import Arrivals

_AZURE_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
_UNREADABLE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, UnicodeDecodeError, csv.Error)


def read_azure(path: Path) -> Arrivals:
    """Columns arrival_s, input_tokens, output_tokens; the trace names no model, so all are model 0."""
    arrival: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    with naming(path):
        for line, row in csv_rows(path, _AZURE_COLUMNS):
            arrival.append(cell_number(row, "arrival_s", path, line))
            if arrival[-1] < (arrival[-2] if len(arrival) > 1 else 0.0):
                raise TrafficError(f"{path}:{line}: arrival_s {arrival[-1]:g} goes back; give times ascending from 0")
            prompt.append(_cell_count(row, "input_tokens", path, line))
            output.append(_cell_count(row, "output_tokens", path, line))
    if not arrival:
        raise TrafficError(f"{path}: holds no requests; give at least one row below the header")
    model = np.zeros(len(arrival), dtype=np.int32)
    return Arrivals(np.array(arrival), model, np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32))


def read_workload(path: Path, models: int | None = None) -> Arrivals:
    """Our workload .npz: arrival, model and, for generation, prompt_tokens and output_tokens.

    With `models`, the number of models there are, an index past them is refused.
    """
    fields = npz_fields(path, ("arrival", "model"), ("prompt_tokens", "output_tokens", "version"))
    version = fields.pop("version", np.array(1))
    if version.shape != () or version != 1:
        raise TrafficError(f"{path}: version {version} cannot be read; write it with version 1")
    arrival = fields.pop("arrival")
    if arrival.dtype.kind not in "fiu":
        raise TrafficError(f"{path}: arrival is {arrival.dtype}; give float64 seconds")
    counts: dict[str, NDArray[np.int32]] = {}
    for name, column in fields.items():
        if column.dtype.kind not in "iu" or (column.size and column.max() > MOST_TOKENS):
            raise TrafficError(f"{path}: {name} does not fit int32 ({column.dtype}); give whole numbers")
        counts[name] = column.astype(np.int32)
    try:
        workload = Arrivals(arrival.astype(np.float64), **counts)
    except TrafficError as error:
        raise TrafficError(f"{path}: {error}") from None
    if models is not None and len(workload) and (most := int(workload.model.max())) >= models:
        raise TrafficError(f"{path}: model {most} does not exist; give indexes below {models}, the number of models")
    return workload


def read_requests(path: Path) -> Arrivals:
    """A trace of either kind, told apart by its name."""
    return read_workload(path) if path.suffix == ".npz" else read_azure(path)


def csv_rows(path: Path, columns: Iterable[str]) -> Iterator[tuple[int, Mapping[str, str | None]]]:
    """Line number and cells of each row, after checking that the header has `columns`."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in columns if name not in (reader.fieldnames or [])]
        if missing:
            raise TrafficError(f"{path}:1: no column {missing[0]}; give a header with {', '.join(columns)}")
        for row in reader:
            yield reader.line_num, row


def cell_number(row: Mapping[str, str | None], name: str, path: Path, line: int) -> float:
    text = row.get(name)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TrafficError(f"{path}:{line}: {name} is {text!r}; give a finite number")
    return value


def npz_fields(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, NDArray[np.generic]]:
    """The named arrays of an .npz; others in it are left alone."""
    with naming(path):
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise TrafficError(f"{path}: is not an .npz archive; give an intact .npz")
        try:
            with np.load(path, allow_pickle=False) as archive:
                names = [name for name in (*required, *optional) if name in archive.files]
                fields = {name: archive[name] for name in names}
        except ValueError as error:
            raise TrafficError(f"{path}: cannot be read as .npz ({_first_line(error)}); give an intact file") from None
    for name in required:
        if name not in fields:
            raise TrafficError(f"{path}: no field {name}; give {', '.join(required)}")
    return fields


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn what the system says about an unreadable file into one line with its name."""
    try:
        yield
    except FileNotFoundError:
        raise TrafficError(f"{path}: no such file; give the path of a trace") from None
    except _UNREADABLE as error:
        raise TrafficError(f"{path}: cannot be read ({_first_line(error)}); give an intact file") from None


def _cell_count(row: Mapping[str, str | None], name: str, path: Path, line: int) -> int:
    text = row.get(name)
    # isdecimal also takes other scripts' digits, which int() reads as well.
    if not text or not text.isdecimal() or int(text) > MOST_TOKENS:
        raise TrafficError(f"{path}:{line}: {name} is {text!r}; give a whole number from 0 to {MOST_TOKENS}")
    return int(text)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
