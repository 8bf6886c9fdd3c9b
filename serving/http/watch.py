"""Sees to it that nobody works for a client that is gone, does not read, or has had its time. One timer a request; a
task only for requests that take longer than a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal, Protocol

from serving.http.settings import HttpSettings

MOMENT_S = 0.01
_TICK_S = 0.5

Reason = Literal["gone", "stalled", "late", "slow"]
"""The client left; it does not read its answer; the answer took too long; its body took too long."""


class Watched(Protocol):
    """The exchange, as far as it is watched."""

    began_s: float
    sending_since_s: float | None
    is_read: bool
    is_ended: bool


class Watch:
    """Cancels `task`, which answers `call`; `reason` says why. Begins with the reading of the body."""

    __slots__ = ("_call", "_handle", "_loop", "_receive", "_receiving", "_settings", "_task", "reason")

    def __init__(
        self,
        call: Watched,
        task: asyncio.Task[Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        settings: HttpSettings,
    ) -> None:
        self.reason: Reason | None = None
        self._call, self._task, self._receive, self._settings = call, task, receive, settings
        self._loop = asyncio.get_running_loop()
        self._receiving: asyncio.Task[None] | None = None
        self._handle = self._loop.call_later(MOMENT_S, self._tick)

    def stop(self) -> None:
        self._handle.cancel()
        if self._receiving is not None:
            self._receiving.cancel()

    def _tick(self) -> None:
        call, settings, now = self._call, self._settings, time.perf_counter()
        if not call.is_read:
            # Whoever reads the body will see for itself that the client is gone.
            self._end_if(now - call.began_s > settings.body_s, "slow")
            self._again(5 * MOMENT_S)
            return
        if self._receiving is None:
            self._receiving = self._loop.create_task(self._wait())
        sending = call.sending_since_s
        self._end_if(sending is not None and now - sending > settings.stall_s, "stalled")
        self._end_if(now - call.began_s > settings.request_s, "late")
        self._again(_TICK_S)

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._end_if(not self._call.is_ended, "gone")

    def _again(self, after_s: float) -> None:
        if self.reason is None:
            self._handle = self._loop.call_later(after_s, self._tick)

    def _end_if(self, holds: bool, reason: Reason) -> None:
        if holds and self.reason is None:
            self.reason = reason
            self._task.cancel()
