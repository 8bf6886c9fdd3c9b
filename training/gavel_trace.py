"""Reads a Gavel trace with its table of throughputs, as they are."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec

from placement.errors import InputError
from placement.files import read_bytes
from placement.units import Seconds
from training.job_files import check_jobs, read_text
from training.jobs import Job

COLUMNS = 10
UNCONSOLIDATED = "_unconsolidated"

Throughputs = dict[str, dict[str, dict[str, float | list[float]]]]


def read_gavel(trace: Path, throughputs: Path) -> list[Job]:
    """The jobs of a trace, in order of arrival; a job's speeds are steps a second by kind."""
    try:
        table = msgspec.json.decode(read_bytes(throughputs), type=Throughputs)
    except msgspec.DecodeError as error:
        raise InputError(f"{throughputs}: not a table of throughputs: {error}") from error
    kinds = [kind for kind in table if not kind.endswith(UNCONSOLIDATED)]
    jobs = []
    for line, row in enumerate(csv.reader(io.StringIO(read_text(trace)), delimiter="\t"), start=1):
        if len(row) != COLUMNS:
            raise InputError(f"{trace}: line {line}: {len(row)} cells; a Gavel trace has {COLUMNS}")
        try:
            name, steps, gpus, weight, slo, arrival = row[0], int(row[5]), int(row[6]), *map(float, row[7:10])
        except ValueError as error:
            raise InputError(f"{trace}: line {line}: {error}") from error
        speeds: dict[str, float] = {}
        for kind in kinds:
            alone = table[kind].get(f"('{name}', {gpus})", {}).get("null", 0.0)
            speeds[kind] = alone if isinstance(alone, float) else 0.0
        if not any(speeds.values()):
            raise InputError(f"{trace}: line {line}: {throughputs} has nothing for {name!r} on {gpus} GPUs")
        fastest = max(kinds, key=lambda kind: speeds[kind])
        try:
            jobs.append(
                Job(
                    id=str(line - 1),
                    arrival=Seconds(arrival),
                    duration=Seconds(steps / speeds[fastest]),
                    gpus=gpus,
                    kind=fastest,
                    speeds=speeds,
                    mixed=False,
                    model=name,
                    priority=weight,
                    deadline=None if slo < 0 else Seconds(slo),
                )
            )
        except (ValueError, OverflowError) as error:
            raise InputError(f"{trace}: line {line}: {error}") from error
    return check_jobs(jobs, str(trace))
