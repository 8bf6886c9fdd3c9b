"""The states of a job, and which may follow which."""

from __future__ import annotations

from typing import Literal, get_args

State = Literal["queued", "starting", "running", "suspended", "finished", "failed", "cancelled"]
"""queued: no controller has had it; starting: one is about to run it; suspended: it goes on from its checkpoint when it
gets devices again; finished, failed, cancelled: ended."""
STATES: tuple[State, ...] = get_args(State)
WAITING: frozenset[State] = frozenset({"queued", "suspended"})
HOLDING: frozenset[State] = frozenset({"starting", "running"})
"""Those that hold devices."""
ENDED: frozenset[State] = frozenset({"finished", "failed", "cancelled"})

FOLLOWING: dict[State, frozenset[State]] = {
    "queued": frozenset({"starting", "failed", "cancelled"}),
    "starting": frozenset({"running", "suspended", "finished", "failed", "cancelled"}),
    "running": frozenset({"starting", "suspended", "finished", "failed", "cancelled"}),
    "suspended": frozenset({"starting", "failed", "cancelled"}),
    "finished": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
