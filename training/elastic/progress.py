"""How far a job is, and how it went, read from the history in its folder: little of it, however long it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from training.elastic.task import HISTORY

TAIL_BYTES = 2**14
LINE_BYTES = 2**12
"""The lines of steps are shorter by far."""
POINTS = 300


@dataclass(frozen=True)
class Progress:
    """`per_s`: steps a second lately."""

    step: int
    at: float
    """Unix seconds."""
    loss: float
    workers: int
    per_s: float | None


@dataclass(frozen=True)
class Curve:
    """Of some steps, in order."""

    at: list[float]
    step: list[int]
    loss: list[float]
    workers: list[int]


def read_progress(folder: Path) -> Progress | None:
    """None before the first step."""
    try:
        with open(folder / HISTORY, "rb") as file:
            size = file.seek(0, 2)
            steps = _steps(file, max(size - TAIL_BYTES, 0), TAIL_BYTES)
    except FileNotFoundError:
        return None
    if not steps:
        return None
    first, last = _since_going_back(steps), steps[-1]
    took_s = last["at"] - first["at"]
    per_s = (last["step"] - first["step"]) / took_s if took_s > 0 else None
    return Progress(last["step"], last["at"], last["loss"], last["workers"], per_s)


def read_curve(folder: Path, points: int = POINTS) -> Curve:
    """At most so many points, spread over the whole file."""
    steps: dict[int, dict[str, Any]] = {}
    try:
        with open(folder / HISTORY, "rb") as file:
            size = file.seek(0, 2)
            if size <= points * LINE_BYTES // 4:
                found = _made(_steps(file, 0, size))
                steps = {one["step"]: one for one in found[:: max(len(found) // points, 1)] + found[-1:]}
            else:
                for place in range(points):
                    for one in _made(_steps(file, (size - LINE_BYTES) * place // (points - 1), LINE_BYTES))[:1]:
                        steps[one["step"]] = one
    except FileNotFoundError:
        pass
    kept = sorted(steps.values(), key=lambda one: float(one["at"]))
    return Curve(*([one[name] for one in kept] for name in ("at", "step", "loss", "workers")))


def _since_going_back(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """The first from which on each is a step further."""
    first = steps[-1]
    for one in reversed(steps[:-1]):
        if one["step"] >= first["step"]:
            break
        first = one
    return first


def _made(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those that were made again."""
    return [one for one in steps if not one.get("again")]


def _steps(file: BinaryIO, start: int, size: int) -> list[dict[str, Any]]:
    """Those whose lines lie wholly in a part of the file."""
    file.seek(start)
    lines = file.read(size).splitlines(keepends=True)
    whole = [line for line in lines[1 if start else 0 :] if line.endswith(b"\n")]
    decoded: list[dict[str, Any]] = [msgspec.json.decode(line) for line in whole if b'"step"' in line[:40]]
    return [one for one in decoded if one.get("what") == "step"]
