"""An event loop whose time jumps: waits cost nothing, and what happens when is exact. For tests and rehearsals.

Only timers and callbacks: with sockets or threads, time would jump over what they wait for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at 0. When nothing is ready, the time becomes that of the next timer, exactly."""

    def __init__(self) -> None:
        self._virtual_now = 0.0
        super().__init__(_Jumping(self))
        self._clock_resolution = 1e-12

    def time(self) -> float:
        return self._virtual_now

    async def sleep_until(self, when: float) -> None:
        """Return at this very time."""
        if when > self._virtual_now:
            done = self.create_future()
            handle = self.call_at(when, _wake, done)
            try:
                await done
            finally:
                handle.cancel()

    def jump(self) -> None:
        timers: list[asyncio.TimerHandle] = getattr(self, "_scheduled", [])
        if not timers:
            raise RuntimeError("everybody waits and no timer is set: nothing can ever happen")
        self._virtual_now = max(self._virtual_now, timers[0].when())


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._loop.jump()
        return []


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on a loop whose time jumps."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
