"""Processes of this machine as /proc tells of them: who lives, who belongs to a job. Linux only."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from training.queue.record import Process

_PROC = Path("/proc")
_STARTED = 19
"""Place of the start time behind the name in /proc/PID/stat."""


def this_process() -> Process:
    found = find_process(os.getpid())
    assert found is not None
    return found


def find_process(pid: int) -> Process | None:
    """The process of that number, unless it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid, int(fields[_STARTED]))


def is_alive(process: Process) -> bool:
    return find_process(process.pid) == process


def with_variable(name: str, value: str) -> list[Process]:
    """All that were started with an environment variable of that value."""
    return with_any(name).get(value, [])


def with_any(name: str) -> dict[str, list[Process]]:
    """All that were started with an environment variable of that name, by its value."""
    prefix = f"{name}=".encode()
    found: dict[str, list[Process]] = {}
    for entry in os.listdir(_PROC):
        if not entry.isdigit():
            continue
        try:
            variables = (_PROC / entry / "environ").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or somebody else's
            continue
        value = next((one.removeprefix(prefix) for one in variables if one.startswith(prefix)), None)
        if value is not None and (process := find_process(int(entry))) is not None:
            found.setdefault(os.fsdecode(value), []).append(process)
    return found


def send(process: Process, number: signal.Signals) -> None:
    """A signal to this very process, never to a later one of its number."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
