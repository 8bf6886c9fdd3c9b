"""Workers as processes of this machine, each in a session of its own, none outliving this process.

A thread a worker starts it, waits for it and reaps it: the kernel ties a child to the thread that started it
(lifeline.py), so this thread must live as long; and no event loop's way of watching children is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import msgspec

from placement.errors import InputError
from serving.worker.device import devices_environment
from serving.worker.launcher import Exit, WorkerSpec
from serving.worker.lifeline import MAX_DOCUMENT_BYTES, PARENT_VARIABLE
from serving.worker.line_reader import LineReader

OnLine = Callable[[str, str], None]
"""(name of the worker, what it wrote)"""

LAST_WORDS_S = 0.5
"""How long lines may still come once a worker has ended: what it started may keep the pipe."""
PASSED_ON = ("HOME", "LANG", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")
PASSED_ON_PREFIXES = (
    *("CUDA_", "GLOO_", "HIP_", "HSA_", "LC_", "NCCL_", "NUMBA_", "NVIDIA_", "PENSTOCK_", "ROCR_"),
    *("TORCH", "TRITON_", "XDG_"),
)
KEPT_BACK = ("_KEY", "_KEYS")
"""How names of variables end that are never passed on: a worker may be an engine of others."""
ALWAYS = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "TOKENIZERS_PARALLELISM": "false"}

_log = logging.getLogger(__name__)


def make_environment(spec: WorkerSpec, outer: Mapping[str, str]) -> dict[str, str]:
    """Little of one's own environment (no keys), what the devices ask for, then the spec's."""
    open_to_all = (key for key in outer if not key.endswith(KEPT_BACK))
    passed = {key: outer[key] for key in open_to_all if key in PASSED_ON or key.startswith(PASSED_ON_PREFIXES)}
    return passed | ALWAYS | devices_environment(spec.devices or (spec.device,), outer) | spec.environment


class LocalLauncher:
    """`on_line` gets every line that workers write to stderr or stdout, on the loop; without it, the log does."""

    def __init__(self, on_line: OnLine | None = None, python: str = sys.executable) -> None:
        self._on_line = _write_log if on_line is None else on_line
        self._python = python

    async def start(self, spec: WorkerSpec) -> LocalHandle:
        document = msgspec.json.encode(spec.document)
        if len(document) > MAX_DOCUMENT_BYTES:
            raise InputError(f"{spec.name}: a document of {len(document)} bytes; {MAX_DOCUMENT_BYTES} is the most")
        handle = LocalHandle(spec.name, self._on_line)
        command = [self._python, "-P", "-m", "serving.worker.lifeline", spec.module]
        await handle.begin(command, make_environment(spec, os.environ), document)
        return handle


class LocalHandle:
    """A Handle of a process, with its thread."""

    def __init__(self, name: str, on_line: OnLine) -> None:
        self.name = name
        self.pid = 0
        self._loop = asyncio.get_running_loop()
        self._reader = LineReader(lambda line: on_line(name, line))
        self._started: asyncio.Future[IO[bytes]] = self._loop.create_future()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._exit: asyncio.Task[Exit] | None = None
        self._lock = threading.Lock()  # held to signal and to reap: a reaped pid may soon be another's
        self._is_reaped = self._is_doomed = False

    async def begin(self, command: list[str], environment: dict[str, str], document: bytes) -> None:
        """Start the process and read what it writes."""
        arguments = (command, environment, document)
        threading.Thread(target=self._live, args=arguments, name=f"worker {self.name}", daemon=True).start()
        try:
            output = await asyncio.shield(self._started)
            transport, _ = await self._loop.connect_read_pipe(lambda: self._reader, output)
        except asyncio.CancelledError:
            self._started.add_done_callback(_discard)
            self.kill()
            raise
        except (OSError, ValueError) as error:  # ValueError: a null byte in the environment, say
            why = (getattr(error, "strerror", None) or str(error)).lower()
            raise InputError(f"{self.name}: cannot start {command[0]}: {why}") from error
        self._exit = self._loop.create_task(self._collect(transport))

    async def wait(self) -> Exit:
        assert self._exit is not None
        return await asyncio.shield(self._exit)

    async def terminate(self, grace_s: float) -> Exit:
        self._signal(signal.SIGTERM)
        assert self._exit is not None
        await asyncio.wait((self._exit,), timeout=grace_s)
        self.kill()
        return await self.wait()

    def kill(self) -> None:
        self._is_doomed = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """SIGKILL goes to all of the session's processes, others to the worker alone, which knows its own."""
        with self._lock:
            if self.pid and not self._is_reaped:
                send = os.killpg if number == signal.SIGKILL else os.kill
                with contextlib.suppress(ProcessLookupError):
                    send(self.pid, number)

    async def _collect(self, transport: asyncio.BaseTransport) -> Exit:
        try:
            status = await self._ended
            await asyncio.wait((self._reader.ended,), timeout=LAST_WORDS_S)
        finally:
            transport.close()
        code, number = (status, None) if status >= 0 else (None, -status)
        return Exit(name=self.name, code=code, signal=number, lines=self._reader.lines)

    # In the worker's thread

    def _live(self, command: list[str], environment: dict[str, str], document: bytes) -> None:
        environment[PARENT_VARIABLE] = str(os.getpid())
        try:
            with _open_file(document) as stdin:
                process = subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            self._tell(self._started.set_exception, error)
            return
        self.pid = process.pid
        self._tell(self._started.set_result, process.stdout)
        if self._is_doomed:
            self.kill()
        self._tell(self._ended.set_result, self._reap(process))

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the worker, and end what it left behind while its pid cannot be anybody else's."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        self._signal(signal.SIGKILL)
        with self._lock:
            self._is_reaped = True
            return process.wait()

    def _tell(self, settle: Callable[[Any], None], value: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(settle, value)


@contextlib.contextmanager
def _open_file(document: bytes) -> Iterator[IO[bytes]]:
    """A file without a name that needs no feeding and is gone once its reader has closed it: in memory, if possible."""
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("document"), "w+b") if in_memory else tempfile.TemporaryFile() as file:
        file.write(document)
        file.seek(0)
        yield file


def _discard(started: asyncio.Future[IO[bytes]]) -> None:
    if started.exception() is None:
        started.result().close()


def _write_log(name: str, line: str) -> None:
    _log.info("%s: %s", name, line)
