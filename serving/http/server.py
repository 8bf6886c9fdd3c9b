"""Runs the application on a socket: uvicorn with httptools, bounded, and stopped without dropping a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from placement.errors import InputError
from serving.http.door import Door
from serving.http.protocol import bounded_protocol
from serving.http.settings import HttpSettings

_BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_GARBAGE = 10_000
"""New objects before they are looked through for garbage; Python's 700 makes a large body twice as dear."""


class HttpServer:
    """Started and stopped on the caller's event loop (uvloop's, for speed)."""

    def __init__(self, app: Door, host: str, port: int, settings: HttpSettings, front: ASGIApp | None = None) -> None:
        """Port 0 takes a free one. An InputError says why the address cannot be had. `front`: stands before `app`, and
        is one of several that share the port."""
        self._app, self._settings = app, settings
        self._socket = _bind(host, port, front is not None)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                front or app,
                http=bounded_protocol(settings),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=settings.idle_s,  # type: ignore[arg-type]
                timeout_graceful_shutdown=settings.drain_s,  # type: ignore[arg-type]
                backlog=_BACKLOG,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when requests are answered."""
        settle_memory()
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.001)
        if self._serving.done():
            await self._serving

    async def stop(self) -> None:
        """Accept no more, let open requests finish within the bound, end the rest."""
        self._app.health.is_stopping = True
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        # What was cut off at the bound still tells its clients.
        deadline = asyncio.get_running_loop().time() + 1.0
        while self._server.server_state.tasks and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        await self._app.close()

    async def run_until_signal(self) -> None:
        """Serve until SIGTERM or SIGINT, then stop; a second signal does not wait for open requests."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        def ask() -> None:
            if asked.is_set():
                self._server.force_exit = True
            asked.set()

        for number in _SIGNALS:
            loop.add_signal_handler(number, ask)
        try:
            await self.start()
            await asked.wait()
            await self.stop()
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


def settle_memory() -> None:
    """What was made until now stays: to look through it again would stop all requests for a tenth of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GARBAGE, *gc.get_threshold()[1:])


def check_address(host: str, port: int) -> None:
    """An InputError says why the address cannot be had now."""
    _bind(host, port).close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's: uvicorn would raise them again after stopping, and the exit code would not be 0."""
        yield


def _bind(host: str, port: int, is_shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if not 0 <= port < 2**16:
            raise OSError("ports are from 0 to 65535")
        bound = socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=is_shared)
    except OSError as error:
        # Python adds the address to what the system says.
        reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        raise InputError(f"listen {host}:{port}: {reason}; give an address of this machine with a free port") from error
    bound.setblocking(False)
    return bound
