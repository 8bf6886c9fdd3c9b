"""What would wait on each rung: what has come and could not be served yet with what the rung holds."""

from __future__ import annotations

import numpy as np

from training.arrays import Floats

FEW = 3.0
"""Requests that may wait anyhow: so many come together by chance."""
FULL = 1.2
"""Times what may wait: more is not remembered, as it would not have been admitted."""


class Backlog:
    """`held`: what each rung serves, work a second, [rungs]. What it serves in `patience_s` may wait, and a few."""

    def __init__(self, held: Floats, patience_s: float) -> None:
        self._held, self._patience_s = held, patience_s
        self._waiting: Floats = np.zeros(len(held))
        self._fresh_s = self._work_s = self._requests = 0.0
        self._now: float | None = None

    def add(self, work_s: float, requests: int = 1) -> None:
        self._fresh_s += work_s
        self._work_s += work_s
        self._requests += requests

    def load(self, now: float) -> Floats:
        """What waits over what may: above 1 it is too much, [rungs]"""
        if not self._requests:
            return np.zeros(len(self._held))
        served = 0.0 if self._now is None else self._held * (now - self._now)
        may_wait = self._patience_s * self._held + FEW * self._work_s / self._requests
        self._waiting = np.minimum(np.maximum(self._waiting - served, 0.0) + self._fresh_s, FULL * may_wait)
        self._fresh_s, self._now = 0.0, now
        loads: Floats = self._waiting / may_wait
        return loads
