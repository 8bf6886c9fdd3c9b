"""What starts, watches and stops a job's processes: the protocol between the queue and each type of job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from training.queue.record import Process, Record


@dataclass(frozen=True)
class Running:
    """Its processes are there; `process` is the one that stands for all."""

    process: Process


@dataclass(frozen=True)
class Exited:
    """It has ended by itself, or because it was asked to (`stopped`)."""

    code: int | None
    """Negative for a signal; None where it never began."""
    stopped: bool
    error: str = ""

    @property
    def is_success(self) -> bool:
        return self.code == 0 and not self.stopped

    def __str__(self) -> str:
        if self.error:
            return self.error
        if self.code is None:
            return "never began"
        return f"ended by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


@dataclass(frozen=True)
class Gone:
    """Nothing of it is there, and nobody knows how it ended."""


Seen = Running | Exited | Gone


class Runner(Protocol):
    """Of one type of job. A record says all: its `run`, `folder`, `devices` and what was asked for. Calls may take
    some seconds; the queue makes them beside its event loop, never two at once for one job."""

    def start(self, record: Record) -> Process:
        """Begin the record's run, and nothing else of that job; an OSError or InputError says why it cannot."""
        ...

    def look(self, record: Record) -> Seen:
        """How the record's run is, whoever started it."""
        ...

    def stop(self, record: Record) -> None:
        """Ask it to write a checkpoint and end within its grace; waits for nothing."""
        ...

    def kill(self, record: Record) -> Seen:
        """End at once whatever is left of any run of the job; how the record's run has ended."""
        ...

    def can_resize(self, record: Record, devices: Sequence[str]) -> bool:
        """Whether it can change to those devices in place; else it is stopped and started again."""
        ...

    def resize(self, record: Record, devices: Sequence[str]) -> None:
        """Change to those devices, and return when it has left those it gives back."""
        ...


@runtime_checkable
class Parking(Protocol):
    """A runner whose jobs can wait in memory, without devices; others are stopped and started again. An OSError says
    that a job does not do so."""

    def can_park(self, record: Record) -> bool: ...

    def park(self, record: Record) -> None:
        """Let it leave all its devices, and return when it has; its checkpoint is written behind that."""
        ...

    def can_resume(self, record: Record) -> bool:
        """Whether the record's run is parked, or at least there."""
        ...

    def resume(self, record: Record) -> None:
        """Let the record's run go on, on the record's devices."""
        ...
