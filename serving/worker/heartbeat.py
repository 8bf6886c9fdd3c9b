"""When a link's ping is due and when its other end counts as dead.

Only attended time counts against the other end: however late one's own loop comes to a tick (a busy main thread
may keep the interpreter's lock for a second), that tick counts for one and a half, and what has arrived meanwhile
is read before the next. Knows no clock and no socket: it is told.
"""

from __future__ import annotations

from serving.worker.settings import LinkSettings

TICKS_PER_PING = 2
MOST_TICKS_AT_ONCE = 1.5


class Heartbeat:
    def __init__(self, settings: LinkSettings, now: float) -> None:
        self.tick_s = settings.ping_s / TICKS_PER_PING
        self._life_s, self._stall_s = settings.life_s, settings.stall_s
        self.is_late = False
        """The last tick came late: much may have arrived that nobody has looked at."""
        self._last_tick = now
        self._quiet_ticks = 0
        self._silent_s = self._stalled_s = 0.0
        self._taken_bytes = 0

    def sent(self) -> None:
        self._quiet_ticks = 0

    def heard(self) -> None:
        self._silent_s = 0.0

    def tick(self, now: float, taken_bytes: int, unsent_bytes: int) -> None:
        """To be called every `tick_s`; `taken_bytes`: what the other end has taken so far."""
        passed_s = now - self._last_tick
        attended_s = min(passed_s, MOST_TICKS_AT_ONCE * self.tick_s)
        self.is_late = passed_s > attended_s
        self._last_tick = now
        self._quiet_ticks += 1
        self._silent_s += attended_s
        is_stuck = unsent_bytes > 0 and taken_bytes == self._taken_bytes
        self._stalled_s = self._stalled_s + attended_s if is_stuck else 0.0
        self._taken_bytes = taken_bytes

    @property
    def is_ping_due(self) -> bool:
        return self._quiet_ticks >= TICKS_PER_PING

    @property
    def complaint(self) -> str | None:
        """Why the link must end, if it must."""
        if self._silent_s >= self._life_s:
            return f"no sign of life for {self._life_s:g} s"
        if self._stalled_s >= self._stall_s:
            return f"the other end has taken nothing of what waits to be sent for {self._stall_s:g} s"
        return None
