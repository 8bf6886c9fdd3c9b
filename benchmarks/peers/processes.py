"""A server as a tree of processes: how it is started and ended, and what it uses of the processor (Linux's /proc)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_S = 120.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ServerProcess:
    """`command` gets the port as its next argument; `is_there` is asked until it does not raise RuntimeError."""

    def __init__(self, command: list[str], arguments: list[str], is_there: Callable[[int], object]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.port: int = one.getsockname()[1]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process)
        self._process = subprocess.Popen(
            [*command, str(self.port), *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=dict(os.environ) | {"BENTOML_DO_NOT_TRACK": "True", "RAY_USAGE_STATS_ENABLED": "0"},
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                is_there(self.port)
                return
            except RuntimeError:
                time.sleep(0.2)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        self.close()
        raise RuntimeError(f"{command[-1]} does not answer: {said[:300]}")

    def members(self) -> list[int]:
        """The process and all below it."""
        children: dict[int, list[int]] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and (fields := _stat(int(folder.name))):
                children.setdefault(int(fields[1]), []).append(int(folder.name))
        found = [self._process.pid]
        for process in found:
            found += children.get(process, [])
        return found

    def close(self) -> None:
        """SIGTERM, time to end well, then SIGKILL to whoever is left."""
        members = self.members()
        _signal(members[:1], signal.SIGTERM)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and any(map(_is_alive, members)):
            time.sleep(0.05)
        _signal(members, signal.SIGKILL)
        self._process.wait()
        self._errors.close()


def cpu_s(processes: list[int]) -> float:
    """User and system time until now, of those that are still there."""
    return sum(sum(map(int, fields[11:13])) for process in processes if (fields := _stat(process))) / _TICKS_PER_S


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        if _is_alive(process):
            os.kill(process, number)


def _is_alive(process: int) -> bool:
    fields = _stat(process)
    return bool(fields) and fields[0] != "Z"


def _stat(process: int) -> list[str]:
    """From the third field on: state, parent, ...; empty when it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
