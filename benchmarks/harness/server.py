"""`penstock serve` in a process of its own, as users start it, for measurements and tests of the whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from placement.cli.admin import ask_admin

OPTIONS = "PENSTOCK_SERVE_OPTIONS"
"""The variable with further options of `penstock serve`: how a suite is run on a cluster, unchanged."""
START_S = 240.0
_READY = "Penstock serves "


class Server:
    """Ready when entered, stopped by SIGTERM when left."""

    def __init__(self, config: Path, *options: str, core: int | None = None) -> None:
        further = os.environ.get(OPTIONS, "").split()
        command = [sys.executable, "-m", "serving.cli", "serve", str(config), "--logs", "json"]
        self._command = [*command, *options, *further]
        self.log = config.parent / "server.log"
        self.url = ""
        self._core = core
        self._seen: set[int] = set()

    def __enter__(self) -> Self:
        leave_on_sigterm()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.url = self._wait_for_url()
            if self._core is not None:
                os.sched_setaffinity(self.process.pid, {self._core})
            self.status()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None and self.stop() != 0:
            raise RuntimeError(self.tail())
        if self.workers_left():
            raise RuntimeError(f"workers outlived their server: {self.workers_left()}")

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = ask_admin(self.url, "/admin/status")
        self._seen.update(pid for group in status["groups"] for pid in group["pids"])
        return status

    def stop(self, number: signal.Signals = signal.SIGTERM, wait_s: float = 60.0) -> int:
        """Its exit code."""
        self.process.send_signal(number)
        return self.process.wait(wait_s)

    def workers_left(self) -> list[int]:
        """Of all workers ever seen, those that still run, once the kernel had a moment to end them."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(map(is_alive, self._seen)):
            time.sleep(0.02)
        return [pid for pid in self._seen if is_alive(pid)]

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(self.tail())
            for line in self.log.read_text(errors="replace").splitlines():
                if line.startswith(_READY):
                    return next(word for word in line.split() if word.startswith("http"))
            time.sleep(0.05)
        raise RuntimeError(self.tail())


def leave_on_sigterm() -> None:
    """Whoever is told to end leaves its `with` blocks first, so that no server stays behind to disturb the next run."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def write_config(path: Path, devices: int, models: Iterable[dict[str, Any]], **more: Any) -> Path:
    """A configuration for one node of CPU devices; `more` is what else shall stand in it."""
    node = {"name": "local", "devices": devices, "kind": "cpu", "memory": "512MiB"}
    config = {"cluster": {"nodes": [node]}, "models": list(models), "listen": "127.0.0.1:0"} | more
    path.write_text(yaml.safe_dump(config))
    return path


def write_plan(path: Path, groups: Iterable[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"groups": list(groups)}))
    return path
