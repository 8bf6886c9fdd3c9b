"""What a job's coordinator and its workers are told at their start, and the names of the files in a job's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from training.elastic.spec import LmSpec

TASK = "lm.json"
"""What to train and where: written by the runner before the coordinator starts."""
DOOR = "door.json"
"""Where the coordinator can be reached."""
HISTORY = "history.jsonl"
"""Each step with its loss, and each change of the workers."""
FINISHED = "finished.json"
"""There once the model is."""
PARKED_S = 600.0
"""A worker without a device waits so long in memory, and so does a job without any."""
MODEL = "model"
CHECKPOINT = "checkpoint"


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lm: dict[str, Any]
    """What was submitted: an LmSpec, if it is right."""
    run: str
    devices: dict[str, str]
    """Where to begin: what each device is on this machine, such as cpu:0; of a cluster, cpu:0@ID of its node."""
    ray: str | None = None
    """The address of a Ray cluster, where the devices are its."""
    roots: tuple[str, ...] = ()
    """Below these alone a job may read; anywhere, where there are none."""
    grace_s: float = 10.0
    """What it gets between SIGTERM and SIGKILL."""
    parked_s: float = PARKED_S


class WorkerTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    spec: LmSpec
    name: str
    device: str
    folder: str
    tokens: str
    coordinator: str
    """Address of the link to it."""
    secret: str | None = None
    """For a link over TCP."""

    @property
    def checkpoints(self) -> Path:
        return Path(self.folder) / CHECKPOINT
