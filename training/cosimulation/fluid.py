"""A fluid model of serving: work flows in tick by tick, servers that are neither lent nor on their way back take it.

Work that would wait longer than the slack is refused and counts as late, as a router does that knows deadlines. There
are no single requests, models or batches here: how much a server takes is linear, and who waits is first come first
served. A rule says after each tick how many servers to lend.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba as nb
import numpy as np

from training.arrays import Floats, Ints
from training.demand import Demand

if TYPE_CHECKING:
    from training.cosimulation.rules import Rule
    from training.cosimulation.traffic import Traffic


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Servers of inference."""

    servers: int
    reclaim_s: float = 1.0
    """From the decision to take a server back until it serves."""
    slack_s: float = 1.0
    """What work may wait and still be in time."""


@dataclass(frozen=True)
class Seen:
    """What a rule is told of a tick that has passed; `lent` servers were taken from traffic."""

    now: float
    tick_s: float
    work: float
    requests: float
    late: float
    """Of the requests."""
    lent: int
    back: float | None = None
    """Servers came back in this tick, so many seconds after they were asked for."""


@dataclass(frozen=True)
class Served:
    """Columns are [ticks]."""

    traffic: Traffic
    pool: Pool
    lent: Ints
    """Servers that training could use."""
    serving: Ints
    """Servers that took work: the others are lent, or on their way back."""
    late: Floats
    """Work, in server-seconds."""

    @property
    def attainment(self) -> float:
        """The share of the work that was in time."""
        return 1 - float(self.late.sum()) / max(float(self.traffic.work.sum()), 1e-12)

    @property
    def lent_hours(self) -> float:
        return float(self.lent.sum()) * self.traffic.tick_s / 3600

    @property
    def reclaims(self) -> int:
        """How often servers were taken back."""
        return int((np.diff(self.lent) < 0).sum())

    @property
    def demand(self) -> Demand:
        """Servers that training cannot have, as its simulator reads it."""
        changes = np.flatnonzero(np.diff(self.lent, prepend=-1))
        time: Floats = changes.astype(np.float64) * self.traffic.tick_s
        return Demand(time, self.pool.servers - self.lent[changes])


def serve(traffic: Traffic, pool: Pool, rule: Rule) -> Served:
    """Run the traffic through the pool; what the rule says after one tick holds from the next."""
    ticks, tick_s = len(traffic.work), traffic.tick_s
    lent, serving, late = np.zeros(ticks, np.int64), np.zeros(ticks, np.int64), np.zeros(ticks)
    returning: deque[tuple[float, int]] = deque()
    on_way, out, backlog = 0, 0, 0.0
    columns = zip(traffic.work.tolist(), traffic.requests.tolist(), strict=True)
    for tick, (work, requests) in enumerate(columns):
        now, back = tick * tick_s, None
        while returning and returning[0][0] <= now + 1e-9:
            on_way -= returning.popleft()[1]
            back = pool.reclaim_s
        free = pool.servers - out - on_way
        backlog, missed = _flow(backlog, work, float(free), tick_s, pool.slack_s)
        lent[tick], serving[tick], late[tick] = out, free, missed
        share = missed / work if work > 0 else 0.0
        wanted = rule.lend(Seen(now + tick_s, tick_s, work, requests, min(share, 1.0) * requests, out, back))
        assert 0 <= wanted <= pool.servers
        if wanted < out:
            returning.append((now + tick_s + pool.reclaim_s, out - wanted))
            on_way += out - wanted
        out = min(wanted, pool.servers - on_way)
    return Served(traffic, pool, lent, serving, late)


@nb.njit(cache=True)
def _flow(backlog: float, work: float, serving: float, tick_s: float, slack_s: float) -> tuple[float, float]:
    """The backlog after a tick, and the work that is late."""
    asked = backlog + work
    in_time = min(asked, serving * (tick_s + slack_s))
    return max(in_time - serving * tick_s, 0.0), asked - in_time


@nb.njit(cache=True)
def late_of(work: Floats, serving: Floats, tick_s: float, slack_s: float) -> Floats:
    """Work that is late when so many serve, [ticks]"""
    late = np.zeros_like(work)
    backlog = 0.0
    for tick in range(len(work)):
        backlog, late[tick] = _flow(backlog, work[tick], serving[tick], tick_s, slack_s)
    return late
