"""The records of a test as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import TrafficError
from loadgen.results.goals import Goal
from loadgen.results.record import NOT_SENT, Record

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Columns:
    """Arrays of one length, in order of due times, and what they were made of; NaN as in a record."""

    records: tuple[Record, ...]
    row: NDArray[np.int64]
    model: NDArray[np.int64]
    stage: NDArray[np.int64]
    status: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    due_s: Floats
    sent_s: Floats
    done_s: Floats
    lag_s: Floats
    latency_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    answered: Mask
    refused: Mask

    def __len__(self) -> int:
        return len(self.records)

    @property
    def failed(self) -> Mask:
        return ~self.answered & ~self.refused

    @property
    def unsent(self) -> int:
        return sum(record.reason == NOT_SENT for record in self.records)

    def gaps(self, mask: Mask) -> Floats:
        """Between the pieces of the answers of some requests."""
        parts = [np.frombuffer(self.records[at].gaps_s, dtype=np.float64) for at in np.flatnonzero(mask).tolist()]
        return np.concatenate([np.empty(0), *parts])

    def met(self, goals: Sequence[Goal]) -> Mask:
        """Answered, and within every goal of its model."""
        return np.array([goals[record.model].is_met(record) for record in self.records], dtype=np.bool_)

    def write(self, path: Path) -> None:
        """As .npz, a row a request; `reason` is an index into `reasons`, of which the first is empty."""
        reasons = ["", *sorted({record.reason for record in self.records} - {""})]
        place = {reason: at for at, reason in enumerate(reasons)}
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "records"}
        columns["reason"] = np.array([place[record.reason] for record in self.records], dtype=np.int32)
        columns["reasons"] = np.array(reasons)
        try:
            with path.open("wb") as file:
                np.savez_compressed(file, version=np.int32(1), **columns)
        except OSError as error:
            raise TrafficError(f"{path}: cannot be written ({error.strerror}); give another path") from None


def columns_of(records: Sequence[Record]) -> Columns:
    ordered = tuple(sorted(records, key=lambda record: record.row))

    def floats(name: str) -> Floats:
        return np.array([getattr(record, name) for record in ordered], dtype=np.float64)

    def whole(name: str) -> NDArray[np.int64]:
        return np.array([getattr(record, name) for record in ordered], dtype=np.int64)

    return Columns(
        records=ordered,
        row=whole("row"),
        model=whole("model"),
        stage=whole("stage"),
        status=whole("status"),
        prompt_tokens=whole("prompt_tokens"),
        output_tokens=whole("output_tokens"),
        due_s=floats("due_s"),
        sent_s=floats("sent_s"),
        done_s=floats("done_s"),
        lag_s=floats("lag_s"),
        latency_s=floats("latency_s"),
        ttft_s=floats("ttft_s"),
        tpot_s=floats("tpot_s"),
        answered=whole("is_answered").astype(np.bool_),
        refused=whole("is_refused").astype(np.bool_),
    )
