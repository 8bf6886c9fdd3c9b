"""What /v1/jobs needs of the training queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from training.queue import Store


@dataclass(frozen=True)
class JobDesk:
    """`types`: those of jobs that this server runs; `wake` lets the queue look at once."""

    store: Store
    types: frozenset[str]
    wake: Callable[[], None] = lambda: None


class JobEvent(msgspec.Struct, frozen=True):
    at: float
    who: str
    before: str
    state: str
    why: str


class JobAnswer(msgspec.Struct, frozen=True):
    """One job as it is now. Times are Unix seconds, `workers` the fewest and the most."""

    id: str
    object: str
    user: str
    type: str
    state: str
    why: str
    priority: float
    workers: tuple[int, int]
    submitted: float
    started: float | None
    ended: float | None
    run_s: float
    device_s: float
    devices: list[str]
    controller: str | None
    attempts: int
    preemptions: int
    exit_code: int | None
    folder: str | None
    asked: dict[str, Any]
    events: list[JobEvent] | None = None


class JobsAnswer(msgspec.Struct, frozen=True):
    data: list[JobAnswer]
    object: str = "list"


class JobLogAnswer(msgspec.Struct, frozen=True):
    """Bytes `offset` .. `next_offset` of what the job has written, as text."""

    object: str
    id: str
    data: str
    offset: int
    next_offset: int
    state: str
