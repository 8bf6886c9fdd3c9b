"""Records as rows of the table of jobs, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from training.queue.database import Row, Transaction
from training.queue.errors import NoSuchJob
from training.queue.record import Observed, Process, Record
from training.queue.submission import decode_submission, encode_submission

COLUMNS = tuple("username" if name == "user" else name for name in Record.__struct_fields__)
SELECT = f"SELECT {', '.join(COLUMNS)} FROM jobs"
_NAMES = Record.__struct_fields__
_ENCODED: dict[str, Any] = {"process": Process, "devices": tuple[str, ...], "observed": Observed}


def to_record(row: Row) -> Record:
    values = dict(zip(_NAMES, row, strict=True))
    values["job"] = decode_submission(values["job"])
    values["cancelling"] = bool(values["cancelling"])
    for name, kind in _ENCODED.items():
        if values[name] is not None:
            values[name] = msgspec.json.decode(values[name], type=kind)
    return Record(**values)


def to_cell(name: str, value: Any) -> Any:
    if name == "job":
        return encode_submission(value)
    if name in _ENCODED and value is not None:
        return msgspec.json.encode(value).decode()
    return int(value) if name == "cancelling" else value


def find(transaction: Transaction, job: str) -> Record:
    rows = transaction.all(f"{SELECT} WHERE id = ?", job)
    if not rows:
        raise NoSuchJob(f"there is no job {job[:80]!r}")
    return to_record(rows[0])


def insert(transaction: Transaction, record: Record) -> None:
    cells = [to_cell(name, getattr(record, name)) for name in _NAMES]
    marks = ", ".join("?" * len(cells))
    transaction.run(f"INSERT INTO jobs ({', '.join(COLUMNS)}) VALUES ({marks})", *cells)


def update(transaction: Transaction, record: Record, **changes: Any) -> Record:
    """The record as it is from now on."""
    names = ", ".join(f"{name} = ?" for name in changes)
    cells = [to_cell(name, value) for name, value in changes.items()]
    transaction.run(f"UPDATE jobs SET {names} WHERE id = ?", *cells, record.id)
    return msgspec.structs.replace(record, **changes)
