"""How much of this machine's cores is used: by everything, or by a process and all that it has started. Linux only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """Of all cores since the machine began: neither idle nor waiting for a disk."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS_PER_S


class OwnUse:
    """Of this process and those below it, whoever their parent is by now, from when each was first seen."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {os.getpid(): 0}

    def cpu_s(self) -> float:
        """To be asked often: who is started and orphaned between two looks is not found."""
        parent, ticks = dict[int, int](), dict[int, int]()
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with suppress(OSError):  # it has ended
                    fields = (path / "stat").read_text().rpartition(")")[2].split()
                    parent[int(path.name)], ticks[int(path.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
        while more := [pid for pid in parent if pid not in self._last and parent[pid] in self._last]:
            self._last.update(dict.fromkeys(more, 0))
        for pid in self._last.keys() & ticks.keys():
            self._last[pid] = ticks[pid]
            self._first.setdefault(pid, ticks[pid])
        return sum(last - self._first.get(pid, 0) for pid, last in self._last.items()) / _TICKS_PER_S
