"""Beside one worker on its node: starts the worker's process there, unchanged, and tells what becomes of it.

Ray makes an actor of it. The worker is tied to this process as to any that launches it, and ends with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack
from typing import Any

import msgspec

from serving.machines.fetch import fetch_all
from serving.worker.launcher import WorkerSpec
from serving.worker.local_launcher import LocalHandle, LocalLauncher
from serving.worker.scratch import Scratch

HOST_VARIABLE = "PENSTOCK_HOST"
"""As serving.parallel.remote reads it, which is too heavy for here."""
MOST_LINES = 10_000
"""Kept for whoever asks next; of more, the last."""


class WorkerHost:
    """What is told and answered is made of plain values: the cluster's own way of passing them on is not ours."""

    def __init__(self) -> None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # which GPU is the plan's to say, not the cluster's
        self._launcher = LocalLauncher(self._hear)
        self._handle: LocalHandle | None = None
        self._scratch: Scratch | None = None
        self._lines: list[str] = []
        self._exit: dict[str, Any] | None = None
        self._news = asyncio.Event()

    async def prepare(self, host: str) -> tuple[tuple[int, int, int], str]:
        """Ports of this host that are free, and a folder that is there as long as this is."""
        self._scratch = Scratch()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with ExitStack() as kept:
            ports = []
            for _ in range(3):
                bound = kept.enter_context(socket.socket(family, socket.SOCK_STREAM))
                bound.bind((host, 0))
                ports.append(int(bound.getsockname()[1]))
        return (ports[0], ports[1], ports[2]), str(self._scratch.path)

    async def fetch(self, sources: dict[str, str]) -> list[str]:
        """Bring models that this node lacks."""
        return await asyncio.to_thread(fetch_all, sources)

    async def start(self, spec: dict[str, Any]) -> int:
        """The worker's process."""
        assert self._handle is None
        told = msgspec.convert(spec, WorkerSpec)
        told = msgspec.structs.replace(told, environment=told.environment | {HOST_VARIABLE: own_host()})
        self._handle = await self._launcher.start(told)
        return self._handle.pid

    async def follow(self) -> tuple[list[str], dict[str, Any] | None]:
        """What the worker has written since this was last asked, and how it ended, if it has; waits for either."""
        await self._news.wait()
        self._news.clear()
        lines, self._lines = self._lines, []
        return lines, self._exit

    async def see_end(self) -> None:
        """Wait for the worker's end, and let `follow` tell it."""
        assert self._handle is not None
        self._exit = msgspec.to_builtins(await self._handle.wait())
        self._news.set()

    async def terminate(self, grace_s: float) -> None:
        if self._handle is not None:
            await self._handle.terminate(grace_s)

    async def kill(self) -> None:
        if self._handle is not None:
            self._handle.kill()

    def _hear(self, name: str, line: str) -> None:
        self._lines.append(line)
        del self._lines[:-MOST_LINES]
        self._news.set()


def own_host() -> str:
    """This node, as the others of the cluster reach it."""
    import ray.util

    return str(ray.util.get_node_ip_address())
