"""What inference needs of its own nodes over time; the rest can be lent."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placement.errors import InputError
from training.arrays import Floats, Ints
from training.job_files import read_text


@dataclass(frozen=True)
class Demand:
    """From `time[i]` on, traffic needs `servers[i]` nodes."""

    time: Floats
    servers: Ints

    def __post_init__(self) -> None:
        if not len(self.time):
            raise InputError("the demand of inference has no rows; expected time,servers")
        if (np.diff(self.time) <= 0).any() or not np.isfinite(self.time).all() or self.time[0] < 0:
            raise InputError("the demand of inference: times must be finite, from 0, and ascend")
        if (self.servers < 0).any():
            raise InputError("the demand of inference: servers must be 0 or more")

    def busy_s(self, until: float) -> float:
        """Node-seconds that traffic used by then."""
        edges = np.minimum(np.append(self.time, np.inf), until)
        return float((np.diff(edges) * self.servers).sum())


def read_demand(path: Path) -> Demand:
    """A CSV of `time,servers`."""
    rows = list(csv.DictReader(io.StringIO(read_text(path))))
    try:
        return Demand(
            np.array([float(row["time"]) for row in rows], np.float64),
            np.array([int(row["servers"]) for row in rows], np.int64),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: expected columns time,servers with numbers: {error}") from error
