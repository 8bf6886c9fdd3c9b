"""Training jobs as the dashboard shows them: how far they are, when they will be done, how they went."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from training.elastic.progress import read_curve, read_progress
from training.queue.record import Event, Record
from training.queue.states import HOLDING

FRESH_S = 60.0
"""A step that is older says nothing about the pace of now."""


def job_view(record: Record) -> dict[str, Any]:
    told = {
        name: value
        for name, value in record.view().items()
        if name in ("id", "user", "type", "state", "why", "priority", "workers", "submitted", "started", "ended")
    }
    told |= {"devices": list(record.devices), "run_s": record.observed.run_s, "device_s": record.observed.attained}
    told |= {"step": None, "steps": None, "loss": None, "share": None, "expected": None}
    if record.type == "lm":
        return told | _lesson(record)
    duration = record.job.duration
    if duration is not None and duration > 0:
        told["share"] = min(record.observed.done / duration, 1.0)
    return told


def job_curves(folder: Path | None, events: Iterable[Event]) -> dict[str, Any]:
    told: dict[str, Any] = {"events": msgspec.to_builtins(list(events)), "curve": None}
    if folder is not None:
        told["curve"] = vars(read_curve(folder))
    return told


def _lesson(record: Record) -> dict[str, Any]:
    steps = record.job.lm.get("steps")
    if not isinstance(steps, int):
        return {}
    found = None if record.folder is None else read_progress(Path(record.folder))
    if found is None:
        return {"steps": steps}
    done = found.step
    told: dict[str, Any] = {"step": done, "steps": steps, "loss": found.loss, "share": min(done / steps, 1.0)}
    is_running = record.state in HOLDING and time.time() - found.at < FRESH_S
    if is_running and found.per_s:
        told["expected"] = found.at + (steps - done) / found.per_s
    return told
