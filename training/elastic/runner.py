"""Runs jobs of type `lm` for the queue: each is a coordinator under a keeper, as a command is, and is told through its
door when its devices change.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from placement.files import encode_json, replace_file
from training.elastic.door import ask, find_door
from training.elastic.task import FINISHED, PARKED_S, TASK, Task
from training.queue.command_runner import LOG_BYTES, CommandRunner
from training.queue.record import Process, Record
from training.queue.runner import Exited, Gone, Running, Seen

ANSWER_S = 5.0
"""What a job gets to answer beyond its grace."""


@dataclass
class LmRunner:
    """`places`: what each device is on this machine, such as cpu:0. `roots`: the folders that jobs may read models and
    texts from; anything where there are none. `parked_s`: how long a job waits in memory."""

    places: Mapping[str, str] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    log_bytes: int = LOG_BYTES
    fence_s: float = 0.0
    parked_s: float = PARKED_S
    ray: str | None = None
    """The address of a Ray cluster, whose devices `places` are then (cpu:0@ID of the node)."""
    _told: set[str] = field(default_factory=set)
    """Runs that know their devices from this process; to others, another may have told what it could not write down."""
    _telling: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    """Held by whoever tells a job its devices."""

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
            ray=self.ray,
            roots=self.roots,
            grace_s=float(record.job.grace),
            parked_s=self.parked_s,
        )
        replace_file(folder / TASK, encode_json(task))
        self._told.add(record.run)
        return self._commands.start(_command(record))

    def look(self, record: Record) -> Seen:
        seen = self._commands.look(_command(record))
        if isinstance(seen, Running):
            self._make_sure(record)
        if not isinstance(seen, Exited) or seen.code is None or seen.stopped:
            return seen
        if seen.code < 0:
            return Gone()  # killed, not failed: its checkpoint is there
        is_done = seen.code or (Path(str(record.folder)) / FINISHED).exists()
        return seen if is_done else replace(seen, stopped=True)  # it has waited in memory for too long

    def stop(self, record: Record) -> None:
        self._commands.stop(_command(record))

    def kill(self, record: Record) -> Seen:
        self._told.discard(str(record.run))
        self._commands.kill(_command(record))
        return self.look(record)

    def can_resize(self, record: Record, devices: Sequence[str]) -> bool:
        return bool(devices) and self._has_door(record)

    def resize(self, record: Record, devices: Sequence[str]) -> None:
        with self._telling[record.id]:
            self._tell(record, devices)

    def can_park(self, record: Record) -> bool:
        return record.state == "running" and self._has_door(record)

    def park(self, record: Record) -> None:
        self.resize(record, ())

    def can_resume(self, record: Record) -> bool:
        return isinstance(self._commands.look(_command(record)), Running) and self._has_door(record)

    def resume(self, record: Record) -> None:
        self.resize(record, record.devices)

    def _make_sure(self, record: Record) -> None:
        """A controller may have died while it changed the devices: the store is right."""
        telling = self._telling[record.id]
        if not telling.acquire(blocking=False):
            return
        try:
            if record.run not in self._told:
                with suppress(OSError):
                    self._tell(record, record.devices)
        finally:
            telling.release()

    def _tell(self, record: Record, devices: Sequence[str]) -> None:
        run = str(record.run)
        self._told.discard(run)
        ask(Path(str(record.folder)), run, self._placed(devices), float(record.job.grace) + ANSWER_S)
        self._told.add(run)

    def _has_door(self, record: Record) -> bool:
        return find_door(Path(str(record.folder)), str(record.run)) is not None

    def _placed(self, devices: Sequence[str]) -> dict[str, str]:
        return {device: self.places.get(device, "") for device in devices}


def _command(record: Record) -> Record:
    """The same run as one of a command."""
    command = (sys.executable, "-P", "-m", "training.elastic", str(record.folder))
    env = dict(record.job.env)
    if "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]  # it trains by the same code
    job = msgspec.structs.replace(record.job, type="command", command=command, lm={}, env=env)
    return msgspec.structs.replace(record, job=job, type="command")
