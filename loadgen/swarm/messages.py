"""What master and workers tell each other. Every message has the number of its run: one of another run says nothing."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from loadgen.overrun import Overrun
from loadgen.results.record import Record

SHARE = "penstock_share"
REPORT = "penstock"
"""Where a report stands among what Locust's workers report."""

_SENT = tuple(name for name in Record.__dataclass_fields__ if name != "gaps_s")

Row = list[Any]
"""A record: its fields in order, the gaps as bytes of doubles."""


class Share(msgspec.Struct, frozen=True):
    """Of one run, for one worker: which of how many, and from when on."""

    run: int
    index: int
    of: int
    start_epoch_s: float
    host: str
    given: dict[str, str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Of one worker, every few seconds."""

    run: int
    at_epoch_s: float
    """When it was made, by the worker's clock."""
    trouble: str = ""
    """Why the worker cannot send its share."""
    is_done: bool = False
    overrun: Overrun | None = None
    cpu_s: float = 0.0
    records: list[Row] = []
    """Of the requests that have come to an end since the last report."""


def packed(records: Sequence[Record]) -> list[Row]:
    return [[*(getattr(record, name) for name in _SENT), record.gaps_s.tobytes()] for record in records]


def unpacked(rows: Sequence[Row]) -> list[Record]:
    return [_record(*row) for row in rows]


def _record(*row: Any) -> Record:
    *values, gaps = row
    return Record(**dict(zip(_SENT, values, strict=True)), gaps_s=array("d", gaps))
