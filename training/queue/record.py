"""What the store knows of a job: what was asked, its state, who has it, what has been observed of it. Values only."""

from __future__ import annotations

from typing import Any

import msgspec

from training.queue.states import State
from training.queue.submission import Submission


class Process(msgspec.Struct, frozen=True):
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    started: int
    """Clock ticks since boot."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of the policies' table that have to outlive a controller; times are Unix seconds."""

    done: float = 0.0
    rate: float = 0.0
    ready: float = 0.0
    since: float = 0.0
    attained: float = 0.0
    """Device-seconds."""
    run_s: float = 0.0
    time_on: dict[str, float] = {}
    """Seconds on each device kind."""
    first_start: float | None = None
    last_start: float | None = None
    queued_since: float = 0.0
    attained_before: float = 0.0
    run_before: float = 0.0
    waited: float = 0.0
    tried: int = 0
    starts: int = 0
    preemptions: int = 0
    migrations: int = 0
    resizes: int = 0

    def released(self, now: float, held: float, kind: str) -> Observed:
        """Brought up to `now`, with all its devices (`held`, in whole ones) given back."""
        spent = max(now - self.since, 0.0) if held else 0.0
        worked = max(now - max(self.since, self.ready), 0.0) if held else 0.0
        return msgspec.structs.replace(
            self,
            done=self.done + self.rate * worked,
            rate=0.0,
            since=now,
            attained=self.attained + held * spent,
            run_s=self.run_s + spent,
            time_on=self.time_on | {kind: self.time_on.get(kind, 0.0) + spent} if spent else self.time_on,
            queued_since=now,
        )


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One job, as it is now."""

    id: str
    number: int
    """In order of submission."""
    user: str
    type: str
    job: Submission
    state: State
    why: str
    """What brought it into this state."""
    submitted: float
    arrival: float
    """When it wants to be looked at first."""
    due: float
    """Not to be started before this: its arrival, or a while after it failed."""
    ended: float | None = None
    controller: str | None = None
    run: str | None = None
    """The name of its latest run: no two runs have the same."""
    process: Process | None = None
    folder: str | None = None
    """Where its logs and checkpoints are."""
    devices: tuple[str, ...] = ()
    share: float = 1.0
    """Of each of its devices."""
    observed: Observed = Observed()
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    """How often its processes were gone without a word."""
    cancelling: bool = False
    exit_code: int | None = None
    fault: str = ""
    """Why its row cannot be read, and what stands here in its stead; no column. Empty where it can."""

    @staticmethod
    def of(job: Submission, number: int, now: float) -> Record:
        """Of a job that is submitted now."""
        arrival = now + job.arrival
        return Record(
            id=job.id,
            number=number,
            user=job.user,
            type=job.type,
            job=job,
            state="queued",
            why="submitted",
            submitted=now,
            arrival=arrival,
            due=arrival,
            observed=Observed(since=arrival, queued_since=arrival),
        )

    def view(self) -> dict[str, Any]:
        """As users are told."""
        observed = self.observed
        return {
            "id": self.id,
            "object": "job",
            "user": self.user,
            "type": self.type,
            "state": "cancelling" if self.cancelling and self.ended is None else self.state,
            "why": self.why,
            "priority": self.job.priority,
            "workers": [self.job.fewest, self.job.most],
            "submitted": self.submitted,
            "started": observed.first_start,
            "ended": self.ended,
            "run_s": observed.run_s,
            "device_s": observed.attained,
            "devices": list(self.devices),
            "controller": self.controller,
            "attempts": self.attempts,
            "preemptions": observed.preemptions,
            "exit_code": self.exit_code,
            "folder": self.folder,
            "asked": msgspec.json.decode(msgspec.json.encode(self.job, enc_hook=_plain)),
        }


class Event(msgspec.Struct, frozen=True):
    """One change of a job's state (or one that was asked for)."""

    at: float
    who: str
    before: str
    state: str
    why: str


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one user may have at a time; None: as much as there is."""

    jobs: int | None = None
    """Jobs that have not ended."""
    devices: int | None = None

    def __post_init__(self) -> None:
        for name in ("jobs", "devices"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 10**6:
                raise ValueError(f"quota of {value} {name}; expected 0 to 1000000")


def _plain(value: object) -> object:
    return float(value) if isinstance(value, float) else int(value)  # type: ignore[call-overload]  # units are numbers
