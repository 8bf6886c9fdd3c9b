"""The core that a worker is on: another one when it moves. Linux only."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from serving.worker.device import parse_device


class Cores:
    """Made before the process is kept to a core."""

    def __init__(self) -> None:
        self._all = sorted(os.sched_getaffinity(0))

    def move(self, device: str) -> None:
        """Keep all threads of this process on the core of `cpu:N`; past the last core it begins again at the first."""
        self._keep({self._all[parse_device(device).number % len(self._all)]})

    def leave(self) -> None:
        """Let all threads run anywhere."""
        self._keep(self._all)

    def free(self, thread: int) -> None:
        """Let a thread run anywhere."""
        os.sched_setaffinity(thread, self._all)

    def _keep(self, cores: Collection[int]) -> None:
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(int(thread), cores)
