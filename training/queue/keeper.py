"""Keeps one run of a command, so that it outlives its controller: holds the job's lock, starts the command, bounds its
log, ends it when told to, and writes down how it ended.

Started by its file name with a folder and a run's name; needs nothing but Python itself. Everything it is to do stands
in run.json. The lock is handed down to the command: while anything of a run lives, no other run can begin.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUN, LOCK, EXIT, ALIVE, LOGS = "run.json", "run.lock", "exit.json", "alive", "log"
SEGMENTS = 4
"""A log is kept in so many files, each named by the place in the whole log that it begins at."""
LOCK_S = 5.0
"""How long it waits for what is left of an earlier run."""
DRAIN_S = 0.5
"""What is still in the pipe when the command has ended comes within this time."""
_LOOK_S = 0.5
_PDEATHSIG = 1


class Log:
    """The last so many bytes of everything that was ever written to it."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = max(most_bytes // SEGMENTS, 1)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._file = -1
        self._open(max(segments(folder), default=0))

    def write(self, data: bytes) -> None:
        """What does not fit on the disk is lost; the job goes on."""
        try:
            if os.fstat(self._file).st_size >= self._segment_bytes:
                self._open(self._start + os.fstat(self._file).st_size)
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            return

    def _open(self, start: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self._folder / f"{start:016d}", flags, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._start = file, start
        for old in segments(self._folder)[:-SEGMENTS]:
            (self._folder / f"{old:016d}").unlink(missing_ok=True)


def segments(folder: Path) -> list[int]:
    """Where the files of a log begin."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except FileNotFoundError:
        return []


class Keeper:
    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._run = folder, run
        self._stop_asked = False
        self._waker, waking = os.pipe()
        for end in (self._waker, waking):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waking)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._asked)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def keep(self) -> None:
        lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(lock):
            self._end(None, error="an earlier run is still there")
            return
        told = json.loads((self._folder / RUN).read_bytes())
        if told["run"] != self._run:  # a later run has been started instead of this one
            return
        log = Log(self._folder / LOGS, told["log_bytes"])
        if self._stop_asked:
            self._end(None)
            return
        try:
            command = self._start(told, lock)
        except OSError as error:
            log.write(f"penstock: {told['command'][0]}: {error.strerror}\n".encode())
            self._end(127, error=f"{told['command'][0]}: {error.strerror}")
            return
        self._end(self._watch(command, log, told))

    def _asked(self, number: int, frame: object) -> None:
        self._stop_asked = True

    def _start(self, told: dict[str, Any], lock: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            told["command"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            cwd=told["directory"],
            env=told["env"],
            start_new_session=True,
            pass_fds=(lock,),
            preexec_fn=_prepared(told["cores"]),
        )

    def _watch(self, command: subprocess.Popen[bytes], log: Log, told: dict[str, Any]) -> int:
        """Until the command has ended; its exit code, negative for a signal."""
        assert command.stdout is not None
        pipe = command.stdout.fileno()
        os.set_blocking(pipe, False)
        grace_s: float = told["grace_s"]
        kill_at: float | None = None
        is_open = True
        while command.poll() is None:
            wait_s = _LOOK_S if kill_at is None else min(max(kill_at - time.monotonic(), 0.01), _LOOK_S)
            readable = select.select([self._waker, *([pipe] if is_open else [])], [], [], wait_s)[0]
            if self._waker in readable:
                os.read(self._waker, 4096)
            if pipe in readable:
                is_open = _pass_on(pipe, log)
            if not self._stop_asked and _is_orphaned(self._folder / ALIVE, told["fence_s"]):
                self._stop_asked = True
                grace_s = min(grace_s, told["fence_s"] / 2)
            if self._stop_asked and kill_at is None:
                kill_at = time.monotonic() + grace_s
                _signal_group(command.pid, signal.SIGTERM)
            if kill_at is not None and time.monotonic() >= kill_at:
                _signal_group(command.pid, signal.SIGKILL)
        _signal_group(command.pid, signal.SIGKILL)  # what it left behind
        deadline = time.monotonic() + DRAIN_S
        while is_open and select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]:
            is_open = _pass_on(pipe, log)
        return command.returncode

    def _end(self, code: int | None, error: str = "") -> None:
        """All of the file or nothing; None: the command never ran."""
        told = {"run": self._run, "code": code, "stopped": self._stop_asked, "error": error, "at": time.time()}
        path = self._folder / EXIT
        fresh = path.with_suffix(f".{self._run}")
        with open(fresh, "w") as file:
            json.dump(told, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)


def _locked(lock: int) -> bool:
    deadline = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)


def _prepared(cores: list[int]) -> Callable[[], None]:
    keeper = os.getpid()
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        libc.prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died before it could be noticed
            os._exit(1)
        if cores:
            os.sched_setaffinity(0, cores)

    return prepare


def _pass_on(pipe: int, log: Log) -> bool:
    """Whether more may come."""
    try:
        data = os.read(pipe, 2**16)
    except BlockingIOError:
        return True
    log.write(data)
    return bool(data)


def _is_orphaned(alive: Path, fence_s: float) -> bool:
    """Whether no controller has looked after it for so long that another machine's may start it anew."""
    if not fence_s:
        return False
    try:
        return time.time() - alive.stat().st_mtime > fence_s
    except OSError:
        return False


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except OSError:  # nobody is left in it
        return


if __name__ == "__main__":
    Keeper(Path(sys.argv[1]), sys.argv[2]).keep()
