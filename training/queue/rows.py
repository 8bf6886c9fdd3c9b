"""Records as rows of the table of jobs, and back."""

from __future__ import annotations

from typing import Any

import msgspec

from placement.errors import InputError
from training.queue.database import Row, Transaction
from training.queue.errors import NoSuchJob
from training.queue.record import Observed, Process, Record
from training.queue.submission import Submission, decode_submission, encode_submission

_NAMES = tuple(name for name in Record.__struct_fields__ if name != "fault")
COLUMNS = tuple("username" if name == "user" else name for name in _NAMES)
SELECT = f"SELECT {', '.join(COLUMNS)} FROM jobs"
_ENCODED: dict[str, Any] = {"process": Process, "devices": tuple[str, ...], "observed": Observed}
READ = ("job", *_ENCODED)
"""Columns whose cells may be unreadable."""


def to_record(row: Row) -> Record:
    """What cannot be read does not keep others from being read: something stands in for it, and `fault` says so."""
    values = dict(zip(_NAMES, row, strict=True))
    stand_ins = {"job": _stand_in(values["id"]), "process": None, "devices": (), "observed": Observed()}
    faults = []
    for name in READ:
        try:
            values[name] = _from_cell(name, values[name])
        except (InputError, msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
            faults.append(f"its {name} in the store cannot be read: {error}")
            values[name] = stand_ins[name]
    values["cancelling"] = bool(values["cancelling"])
    return Record(**values, fault="; ".join(faults))


def _from_cell(name: str, cell: str | None) -> Any:
    if name == "job":
        return decode_submission(str(cell))
    return None if cell is None else msgspec.json.decode(cell, type=_ENCODED[name])


def _stand_in(job: str) -> Submission:
    return Submission(id=job, command=("false",))


def to_cell(name: str, value: Any) -> Any:
    if name == "job":
        return encode_submission(value)
    if name in _ENCODED and value is not None:
        cell = msgspec.json.encode(value).decode()
        try:
            msgspec.json.decode(cell, type=_ENCODED[name])
        except msgspec.DecodeError as error:
            raise InputError(f"{name} cannot be kept: {error}") from error
        return cell
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
