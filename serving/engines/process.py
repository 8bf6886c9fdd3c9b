"""A server's process: started for one model of a group, ended with everything that it has started. It lives no longer
than the process that started it (tied.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from placement.errors import InputError

GRACE_S = 10.0
"""What a server gets to end by itself."""


class ServerProcess:
    """Made by `start_process`; `ended` is its exit code, negative for a signal."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._process = process
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._wait, args=(loop,), name=f"server {process.pid}", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self.ended.done()

    async def stop(self) -> None:
        """SIGTERM; what is left of it after a while is killed."""
        if not self.is_over:
            with _held(descendants(self.pid)) as family:
                self._process.terminate()
                await asyncio.wait((self.ended,), timeout=GRACE_S)
                _kill(family)
        if not self.is_over:
            with _held(descendants(self.pid)) as born_since:
                self._process.kill()
                _kill(born_since)
        await asyncio.shield(self.ended)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            loop.call_soon_threadsafe(self.ended.set_result, code)


def start_process(command: list[str], environment: dict[str, str]) -> ServerProcess:
    """To be called on the main thread, which lives as long as the process: the kernel ties the two (tied.py)."""
    tied = [sys.executable, "-P", "-m", "serving.engines.tied", *command]
    try:
        return ServerProcess(subprocess.Popen(tied, stdin=subprocess.DEVNULL, env=dict(os.environ) | environment))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot start {command[0]}: {error}") from error


def descendants(pid: int) -> list[int]:
    """Processes that this one has started, and those that they have; on Linux."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        mine = children.get(left.pop(), [])
        found += mine
        left += mine
    return found


@contextlib.contextmanager
def _held(pids: list[int]) -> Iterator[list[int]]:
    """Handles that stay these processes' own: a number may soon be another's. On kernels that have none, what is left
    is killed with the group's session, when its leader ends."""
    with contextlib.ExitStack() as ends:
        handles = []
        for pid in pids:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                ends.callback(os.close, handle)
                handles.append(handle)
        yield handles


def _kill(handles: list[int]) -> None:
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
