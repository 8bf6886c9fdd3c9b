"""A server whose use of the processors is watched: its own, and what its workers count."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from benchmarks.harness.server import Server
from placement.clocks import Floats


class WatchedServer(Server):
    def cpu_s(self) -> float:
        """Of the server's process: HTTP, router, controller; not of its workers."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def busy_s(self) -> Floats:
        """What each stage has computed, by its own count, group by group."""
        return np.concatenate([group["busy_s"] for group in self.status()["groups"]])
