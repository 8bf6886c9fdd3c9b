"""When the stages of an emulated group are free, and being called at such times. Times are time.monotonic()'s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

EARLY_S = 0.0005
"""A call may come this much before its time: loops count in milliseconds."""


class StageClocks:
    """As in the planner: a step enters a stage when it has left the one before and the stage is free."""

    def __init__(self, stages: int) -> None:
        self.free = [0.0] * stages
        """When each stage has done all that has entered it."""

    def enter(self, at: float, stage_s: list[float]) -> float:
        """Let a step pass all stages; returns when it leaves the last."""
        for stage, seconds in enumerate(stage_s):
            at = max(at, self.free[stage]) + seconds
            self.free[stage] = at
        return at

    def occupy(self, at: float, seconds: float) -> float:
        """Keep every stage busy after what is in it; returns when all have done that."""
        self.free = [max(at, free) + seconds for free in self.free]
        return max(self.free)


class Alarms:
    """Calls at times. A late call is told when it was due, so that lateness does not add up; `worst_lag_s` tells
    how late one was: emulated times are off by that much.
    """

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_error = on_error
        self._is_off = False
        self.worst_lag_s = 0.0

    def at(self, due: float, call: Callable[[float], None]) -> None:
        """`call(due)` at `due`, or as soon as possible after it; what is due at one time comes in the order asked."""
        self._loop.call_later(max(due - time.monotonic(), 0.0), self._fire, due, call)

    def turn_off(self) -> None:
        self._is_off = True

    def _fire(self, due: float, call: Callable[[float], None]) -> None:
        if self._is_off:
            return
        lag_s = time.monotonic() - due
        if lag_s < -EARLY_S:
            self.at(due, call)
            return
        self.worst_lag_s = max(self.worst_lag_s, lag_s)
        try:
            call(due)
        except Exception as error:  # as a process's end would be: the group cannot go on, and says so
            self._on_error(error)
