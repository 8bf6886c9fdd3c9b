"""Starting workers, whatever starts them: the one seam between one machine and many.

A launcher knows neither what a worker does nor what its document says; the worker does not know who launched it.
"""

from __future__ import annotations

import signal
from typing import Any, Protocol

import msgspec

from placement.errors import InputError
from serving.worker.device import parse_device


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to start, and where."""

    name: str
    device: str
    """cpu:N (a core) or cuda:N"""
    devices: tuple[str, ...] = ()
    """All that it sees, where it is more than that one."""
    module: str
    """What `python -m` would run."""
    document: dict[str, Any] = {}
    """The worker's own words, as JSON on its stdin; may hold a secret, and is not shown."""
    environment: dict[str, str] = {}
    node: str = ""
    """Of a cluster, by its id, for a launcher that has several; this machine where it is empty."""

    def __post_init__(self) -> None:
        for device in (self.device, *self.devices):
            parse_device(device)
        if not self.name or not self.name.isprintable():
            raise InputError(f"worker name {self.name!r}: give a printable name")
        if not all(part.isidentifier() for part in self.module.split(".")):
            raise InputError(f"worker {self.name}: {self.module!r} is not the name of a module")

    def __repr__(self) -> str:
        return f"WorkerSpec({self.name!r}, {self.device!r}, {self.module!r})"


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker ended: its code, or the signal that ended it, and the last lines it wrote."""

    name: str
    code: int | None
    signal: int | None
    lines: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """One line."""
        how = f"exit code {self.code}" if self.signal is None else f"killed by {_signal_name(self.signal)}"
        last = next((line.strip() for line in reversed(self.lines) if line.strip()), "")
        return f"{self.name}: {how}" + (f": {last}" if last else "")


class Handle(Protocol):
    """One worker that was started."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...

    async def wait(self) -> Exit:
        """Until it has ended; as often as one likes."""
        ...

    async def terminate(self, grace_s: float) -> Exit:
        """Ask it to end (SIGTERM); kill it if it has not within the grace."""
        ...

    def kill(self) -> None:
        """End it and all that it started, at once (SIGKILL); returns before it has ended."""
        ...


class Launcher(Protocol):
    async def start(self, spec: WorkerSpec) -> Handle:
        """Start a worker; it need not be ready when this returns. InputError: it cannot be started."""
        ...


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
