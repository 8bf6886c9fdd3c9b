"""Reading jobs: CSV (one row a job; .gz too) and YAML or JSON (all fields). A fault is one line that names it."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from placement.errors import InputError
from placement.files import MAX_DOCUMENT_BYTES, convert, read_bytes, read_document
from training.jobs import Job

MAX_JOBS = 1_000_000
CSV_REQUIRED = ("id", "arrival", "duration", "gpus")
CSV_OPTIONAL = (
    *("min_gpus", "max_gpus", "priority", "deadline", "kind", "user", "tag", "model", "group", "share", "memory"),
    *("cpus", "spread_speed", "checkpoint", "restart", "resize"),
)
NUMBERS = frozenset({"gpus", "min_gpus", "max_gpus", "priority", "cpus", "spread_speed"})


class JobsDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """jobs.yaml: {jobs: [{id: a, gpus: 1, duration: 10min}]}"""

    jobs: list[Job]


def read_jobs(path: Path) -> list[Job]:
    """The jobs of a file in order of arrival (those of one instant as the file has them)."""
    if path.suffix in (".yaml", ".yml", ".json"):
        try:
            jobs = read_document(path, JobsDocument).jobs
        except RecursionError as error:
            raise InputError(f"{path}: a value holds itself; write it out once") from error
    else:
        jobs = list(_from_csv(path))
    return check_jobs(jobs, str(path))


def check_jobs(jobs: list[Job], where: str) -> list[Job]:
    """The jobs in order of arrival; no two of one id."""
    if not 1 <= len(jobs) <= MAX_JOBS:
        raise InputError(f"{where}: {len(jobs)} jobs; between 1 and {MAX_JOBS} are supported")
    seen: set[str] = set()
    for job in jobs:
        if job.id in seen:
            raise InputError(f"{where}: two jobs have the id {job.id!r}; ids must differ")
        seen.add(job.id)
    return sorted(jobs, key=lambda job: job.arrival)


def read_text(path: Path) -> str:
    """The text of a file, unpacked where its name ends in .gz."""
    content = read_bytes(path)
    if path.suffix == ".gz":
        try:
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(MAX_DOCUMENT_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path}: cannot be unpacked: {error}") from error
        if len(content) > MAX_DOCUMENT_BYTES:
            raise InputError(f"{path}: larger than {MAX_DOCUMENT_BYTES // 2**20} MiB unpacked")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8: {error.reason} at byte {error.start}") from error


def _from_csv(path: Path) -> Iterator[Job]:
    rows = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        header = [name.strip() for name in next(rows, [])]
        _check_header(header, path)
        for line, row in enumerate(rows, start=2):
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(header):
                raise InputError(f"{path}: line {line}: {len(row)} cells for {len(header)} columns")
            cells = {name: cell.strip() for name, cell in zip(header, row, strict=True) if cell.strip()}
            fields = {name: _number(cell) if name in NUMBERS else cell for name, cell in cells.items()}
            yield convert(fields, Job, f"{path}: line {line}")
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV file: {error}") from error


def _number(cell: str) -> object:
    """The number a cell holds, whole where it is; the text itself where it holds none, for the reader to refuse."""
    try:
        return int(cell)
    except ValueError:
        pass
    try:
        value = float(cell)
    except ValueError:
        return cell
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _check_header(header: list[str], path: Path) -> None:
    for name in CSV_REQUIRED:
        if name not in header:
            raise InputError(f"{path}: has no column `{name}`; expected {','.join(CSV_REQUIRED)} and optional ones")
    for name in header:
        if name not in CSV_REQUIRED + CSV_OPTIONAL:
            raise InputError(f"{path}: column {name!r} is not known; optional ones are {', '.join(CSV_OPTIONAL)}")
        if header.count(name) > 1:
            raise InputError(f"{path}: two columns are named {name!r}")
