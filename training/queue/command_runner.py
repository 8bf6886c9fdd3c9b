"""Runs jobs of type `command` on this machine, each under a keeper of its own that outlives the controller."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from placement.files import replace_file
from training.queue import keeper
from training.queue.processes import find_process, is_alive, send, with_variable
from training.queue.record import Process, Record
from training.queue.runner import Exited, Gone, Running, Seen

FOLDER = "PENSTOCK_JOB_DIR"
"""The environment variable that everything of a job has."""
INHERITED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""What a command gets of the server's environment: no keys are among it."""
LOG_BYTES = 16 * 2**20
_KILL_S = 5.0
"""What processes get to end by SIGKILL."""
_LOOK_S = 0.01


@dataclass
class CommandRunner:
    """`places`: what each device is on this machine, such as cpu:0 or cuda:1; on CPU a job is pinned to its cores."""

    places: Mapping[str, str] = field(default_factory=dict)
    log_bytes: int = LOG_BYTES
    fence_s: float = 0.0
    """A run ends by itself when no controller has looked after it for so long; 0: never. For stores that controllers
    of several machines share."""
    _children: set[int] = field(default_factory=set)
    """Keepers that this process started and has to take note of the end of."""

    def start(self, record: Record) -> Process:
        assert record.run is not None
        assert record.folder is not None
        folder = Path(record.folder)
        (folder / "checkpoint").mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._sweep(record)
        (folder / keeper.ALIVE).touch()
        replace_file(folder / keeper.RUN, json.dumps(self._told(record, folder)).encode())
        errors = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", keeper.__file__, str(folder), record.run],
            _inherited() | {FOLDER: str(folder)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(folder / "keeper.err"), errors, 0o600),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGCHLD),
        )
        self._children.add(pid)
        return find_process(pid) or Process(pid, 0)

    def look(self, record: Record) -> Seen:
        assert record.run is not None
        self._reap()
        process = record.process or self._find(record)
        if process is not None and is_alive(process):
            return Running(process)
        return self._exit(record) or Gone()

    def stop(self, record: Record) -> None:
        seen = self.look(record)
        if isinstance(seen, Running):
            send(seen.process, signal.SIGTERM)

    def kill(self, record: Record) -> Seen:
        self._sweep(record)
        return self.look(record)

    def can_resize(self, record: Record, devices: Sequence[str]) -> bool:
        return False

    def resize(self, record: Record, devices: Sequence[str]) -> None:
        raise NotImplementedError("a command learns its devices when it starts")

    def _told(self, record: Record, folder: Path) -> dict[str, object]:
        places = [self.places.get(device, "") for device in record.devices]
        numbers = [place.partition(":")[2] for place in places]
        cores = [int(place[4:]) for place in places if place.startswith("cpu:")]
        job = record.job
        variables = _inherited()
        if any(place.startswith("cuda:") for place in places):
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(numbers)
        ours = {
            "PENSTOCK_JOB_ID": record.id,
            "PENSTOCK_RUN_ID": str(record.run),
            "PENSTOCK_ATTEMPT": str(record.attempts),
            "PENSTOCK_WORKERS": str(len(record.devices)),
            "PENSTOCK_DEVICES": ",".join(record.devices),
            "PENSTOCK_CHECKPOINT_DIR": str(folder / "checkpoint"),
            FOLDER: str(folder),
        }
        return {
            "run": record.run,
            "command": list(job.command),
            "directory": job.directory or str(folder),
            "env": variables | job.env | ours,
            "cores": cores if set(cores) <= os.sched_getaffinity(0) else [],
            "grace_s": float(job.grace),
            "fence_s": self.fence_s,
            "log_bytes": self.log_bytes,
        }

    def _find(self, record: Record) -> Process | None:
        """The keeper of a run whose process nobody could write down any more."""
        wanted = os.fsencode(str(record.run))
        for process in with_variable(FOLDER, str(record.folder)):
            try:
                if wanted in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0"):
                    return process
            except OSError:
                continue
        return None

    def _sweep(self, record: Record) -> None:
        """End whatever is left of any run of this job."""
        deadline = time.monotonic() + _KILL_S
        while left := with_variable(FOLDER, str(record.folder)):
            for process in left:
                send(process, signal.SIGKILL)
            self._reap()
            if time.monotonic() > deadline:
                raise OSError(f"processes of job {record.id} do not end: {[process.pid for process in left]}")
            time.sleep(_LOOK_S)

    def _reap(self) -> None:
        for pid in list(self._children):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:
                ended = True
            if ended:
                self._children.discard(pid)

    def _exit(self, record: Record) -> Exited | None:
        try:
            told = json.loads((Path(str(record.folder)) / keeper.EXIT).read_bytes())
        except FileNotFoundError:
            return None
        return Exited(told["code"], told["stopped"], told["error"]) if told["run"] == record.run else None


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ}
