"""Waiting for a moment on the monotonic clock in an asyncio loop, to some tens of microseconds."""

from __future__ import annotations

import asyncio
import time

from loadgen.kernel_timer import make_kernel_timer

EARLY_S = 0.0015
"""Loops wake up to a millisecond late: without a kernel timer they sleep to this before the moment, then yield."""


class Pacer:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._timer = make_kernel_timer()
        if self._timer is not None:
            self._loop.add_reader(self._timer.fd, self._on_expired)

    async def until(self, moment_s: float) -> None:
        wait_s = moment_s - time.monotonic()
        if wait_s <= 0:
            return
        if self._timer is not None:
            self._timer.set(moment_s)
            self._waiter = self._loop.create_future()
            await self._waiter
            return
        if wait_s > EARLY_S:
            await asyncio.sleep(wait_s - EARLY_S)
        while time.monotonic() < moment_s:
            await asyncio.sleep(0)

    def close(self) -> None:
        if self._timer is not None:
            self._loop.remove_reader(self._timer.fd)
            self._timer.close()

    def _on_expired(self) -> None:
        assert self._timer is not None
        self._timer.clear()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
