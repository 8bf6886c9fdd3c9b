"""Rings when something is due next: one timer of the event loop, on the router's clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    def __init__(self, now: Callable[[], float], ring: Callable[[float], None]) -> None:
        self._now = now
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf

    def set(self, at: float) -> None:
        """Ring at this time at the latest; one who is waited for earlier stays."""
        if at < self._at:
            self.stop()
            self._at = at
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(loop.time() + max(at - self._now(), 0.0), self._go_off)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, math.inf

    def _go_off(self) -> None:
        now = max(self._now(), self._at)
        self._timer, self._at = None, math.inf
        self._ring(now)
