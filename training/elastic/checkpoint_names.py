"""Which checkpoints a folder has, by their names alone: each has its step and the checksum of all its bytes. Imports no
torch, and opens none of them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"step-([0-9]{10})-([0-9a-f]{32})\.safetensors")


@dataclass(frozen=True, order=True)
class CheckpointName:
    step: int
    checksum: str

    def __str__(self) -> str:
        return f"step-{self.step:010d}-{self.checksum}.safetensors"


def names_in(folder: Path) -> list[CheckpointName]:
    """Newest first."""
    try:
        found = map(_NAME.fullmatch, os.listdir(folder))
    except FileNotFoundError:
        return []
    return sorted((CheckpointName(int(one[1]), one[2]) for one in found if one), reverse=True)


def newest_step(folder: Path) -> int:
    """-1: there is none."""
    return max((name.step for name in names_in(folder)), default=-1)
