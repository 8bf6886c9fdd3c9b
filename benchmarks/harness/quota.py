"""Processes held to a share of a core by the kernel (a cgroup's quota). Needs a cgroup that this user may write to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 5_000
"""Short, so that what is held back waits for milliseconds; a share below a fifth is below what kernels take."""
_MOUNT = Path("/sys/fs/cgroup")
_LIMITS = ("cpu.cfs_quota_us", "cpu.max")
"""Of the first version of cgroups, and of the second."""


def can_hold() -> bool:
    return _root() is not None


@contextmanager
def held(processes: Iterable[int], share: float) -> Iterator[None]:
    """Each to `share` of a core, in a group of its own below ours, until the block is left."""
    root = _root()
    assert root is not None, "ask can_hold first"
    groups: dict[int, Path] = {}
    try:
        for process in processes:
            groups[process] = folder = root / f"penstock-{os.getpid()}-{process}"
            folder.mkdir()
            quota_us = round(share * PERIOD_US)
            if (folder / _LIMITS[0]).exists():
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (folder / _LIMITS[0]).write_text(str(quota_us))
            else:
                (folder / _LIMITS[1]).write_text(f"{quota_us} {PERIOD_US}")
            (folder / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for process, folder in groups.items():
            (root / "cgroup.procs").write_text(str(process))
            folder.rmdir()


def _root() -> Path | None:
    """The group that this process is in, if groups with a quota can be made below it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names and "cpu" not in names.split(","):
            continue
        root = _MOUNT / ("cpu" if names else "") / path.removeprefix("/")
        try:
            probe = root / f"penstock-{os.getpid()}-probe"
            probe.mkdir()
        except OSError:
            continue
        is_fit = any((probe / name).exists() for name in _LIMITS)
        probe.rmdir()
        if is_fit:
            return root
    return None
