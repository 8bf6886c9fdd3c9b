"""Runs jobs of type `lm` for the queue: each is a coordinator under a keeper, as a command is, and is told through its
door when its devices change.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from placement.files import encode_json, replace_file
from training.elastic.door import ask, find_door
from training.elastic.task import TASK, Task
from training.queue.command_runner import LOG_BYTES, CommandRunner
from training.queue.record import Process, Record
from training.queue.runner import Exited, Gone, Running, Seen


@dataclass
class LmRunner:
    """`places`: what each device is on this machine, such as cpu:0. `roots`: the folders that jobs may read models and
    texts from; anything where there are none."""

    places: Mapping[str, str] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    log_bytes: int = LOG_BYTES
    fence_s: float = 0.0
    _agreed: dict[str, frozenset[str]] = field(default_factory=dict)
    """The devices of each job, as this process has last told its run; another may have told it others before."""

    def __post_init__(self) -> None:
        # A coordinator is pinned to no core: its workers are, each to its own.
        self._commands = CommandRunner({}, self.log_bytes, self.fence_s)

    def start(self, record: Record) -> Process:
        assert record.run is not None
        assert record.folder is not None
        folder = Path(record.folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._commands.kill(_command(record))
        task = Task(
            lm=record.job.lm,
            run=record.run,
            devices=self._placed(record.devices),
            roots=self.roots,
            grace_s=float(record.job.grace),
        )
        replace_file(folder / TASK, encode_json(task))
        self._agreed[record.id] = frozenset(record.devices)
        return self._commands.start(_command(record))

    def look(self, record: Record) -> Seen:
        seen = self._commands.look(_command(record))
        if isinstance(seen, Running) and self._agreed.get(record.id) != frozenset(record.devices):
            # A controller died while it changed the devices: the store is right.
            with suppress(OSError):
                self.resize(record, record.devices)
        if isinstance(seen, Exited) and seen.code is not None and seen.code < 0 and not seen.stopped:
            return Gone()  # killed, not failed: its checkpoint is there
        return seen

    def stop(self, record: Record) -> None:
        self._commands.stop(_command(record))

    def kill(self, record: Record) -> Seen:
        self._agreed.pop(record.id, None)
        self._commands.kill(_command(record))
        return self.look(record)

    def can_resize(self, record: Record, devices: Sequence[str]) -> bool:
        """One that stays has the state that others need."""
        stays = set(devices) & set(record.devices)
        return bool(stays) and find_door(Path(str(record.folder)), str(record.run)) is not None

    def resize(self, record: Record, devices: Sequence[str]) -> None:
        ask(Path(str(record.folder)), str(record.run), self._placed(devices))
        self._agreed[record.id] = frozenset(devices)

    def _placed(self, devices: Sequence[str]) -> dict[str, str]:
        return {device: self.places.get(device, "") for device in devices}


def _command(record: Record) -> Record:
    """The same run as one of a command."""
    command = (sys.executable, "-P", "-m", "training.elastic", str(record.folder))
    job = msgspec.structs.replace(record.job, type="command", command=command, lm={})
    return msgspec.structs.replace(record, job=job, type="command")
