"""Keeps the front ends running: HTTP processes that share one port (SO_REUSEPORT), each started again when it dies."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Mapping

import msgspec

from placement.errors import InputError
from serving.config import ServeConfig
from serving.controller.front_process import FrontDocument
from serving.controller.journal import Journal
from serving.fronts.desk import Desk
from serving.http.auth import ADMIN_VARIABLE, KEYS_VARIABLE
from serving.worker.launcher import Handle, WorkerSpec
from serving.worker.local_launcher import LocalLauncher
from serving.worker.scratch import Scratch

BACK_OFF_S = (0.0, 0.5, 1.0, 5.0, 10.0)
"""Before each start after a death, the last for all further ones."""
STEADY_S = 60.0
"""One that has lived so long begins anew with its deaths."""
READY_S = 60.0
TRACES_PREFIX = "OTEL_"
"""Of the variables by which OpenTelemetry is told what to send where."""
_LOOK_S = 0.02
MODULE = "serving.controller.front_process"


class FrontKeeper:
    """Holds the port from the beginning, so that it stays the same whoever dies."""

    def __init__(self, config: ServeConfig, desk: Desk, journal: Journal, admin_key: str | None) -> None:
        self._config, self._desk, self._journal, self._admin_key = config, desk, journal, admin_key
        # Their lines are a log's already.
        self._launcher = LocalLauncher(lambda name, line: self._pass_on(line))
        self._lines: list[str] = []
        self._scratch = Scratch()
        host, port = config.address
        self._held = hold_port(host, port)
        self.port: int = self._held.getsockname()[1]
        self._handles: dict[int, Handle] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    async def start(self) -> None:
        """Returns when all answer."""
        address = await self._desk.open(f"unix:{self._scratch.path}/desk")
        document = FrontDocument(
            config=msgspec.to_builtins(self._config, enc_hook=float),
            host=self._config.address.host,
            port=self.port,
            desk=address,
            keys=_keys(os.environ, self._admin_key),
            logs="console" if sys.stderr.isatty() else "json",
        )
        count = self._config.fronts
        self._tasks = [asyncio.create_task(self._keep(n, document), name=f"front end {n}") for n in range(count)]
        try:
            async with asyncio.timeout(READY_S):
                while self._desk.fronts < count:  # those of other hosts come later
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise InputError(f"front ends: {count} were not ready within {READY_S:g} s; the log says why") from None

    async def stop(self, grace_s: float) -> None:
        """They accept no more, and finish what is open within the bound."""
        self._is_stopping = True
        await asyncio.gather(*(handle.terminate(grace_s) for handle in self._handles.values()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._write()
        self._held.close()
        self._scratch.remove()

    @property
    def pids(self) -> list[int]:
        return [handle.pid for handle in self._handles.values()]

    def _pass_on(self, line: str) -> None:
        """Front ends tell of every request; what has come together is written at once."""
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._write)
        self._lines.append(line)

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            sys.stderr.write("\n".join([*lines, ""]))

    async def _keep(self, number: int, document: FrontDocument) -> None:
        deaths = 0
        while True:
            began = time.monotonic()
            reason = await self._run(number, document)
            if self._is_stopping:
                return
            deaths = 0 if time.monotonic() - began > STEADY_S else deaths
            pause_s = BACK_OFF_S[min(deaths, len(BACK_OFF_S) - 1)]
            self._journal.note("fronts", f"front/{number}", "lost", reason=reason, again_in_s=pause_s)
            deaths += 1
            await asyncio.sleep(pause_s)

    async def _run(self, number: int, document: FrontDocument) -> str:
        """To its end, and why it came; one that the machine has no room to start has ended too."""
        try:
            handle = self._handles[number] = await self._launcher.start(front_spec(number, document, os.environ))
        except InputError as error:
            return str(error)
        return (await handle.wait()).reason


def front_spec(number: int, document: FrontDocument, outer: Mapping[str, str]) -> WorkerSpec:
    """Of all that is started, front ends alone send traces."""
    return WorkerSpec(
        name=f"front/{number}",
        device="cpu:0",
        module=MODULE,
        document=msgspec.to_builtins(document),
        environment={key: outer[key] for key in outer if key.startswith(TRACES_PREFIX)},
    )


def _keys(outer: Mapping[str, str], made: str | None) -> dict[str, str]:
    """Variables of this process with keys; `made`: the admin key, if it was made for this run."""
    found = {name: outer[name] for name in (KEYS_VARIABLE, ADMIN_VARIABLE) if name in outer}
    return found if made is None else found | {ADMIN_VARIABLE: made}


def hold_port(host: str, port: int) -> socket.socket:
    """Bound and not listening: others of this user may listen there too, and connections go to them alone."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise InputError(f"listen {host}:{port}: {(error.strerror or str(error)).lower()}") from error
    return bound
