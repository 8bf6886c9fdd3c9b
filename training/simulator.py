"""Runs a queue on simulated time: arrivals, ends and loans happen, the mechanism decides, rates change.

Event-driven; nothing happens between events. Decisions are the mechanism's, which a live queue calls the same way.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from placement.errors import InputError
from training.arrays import Floats
from training.demand import Demand
from training.fleet import Fleet
from training.jobs import Job
from training.loans import ReclaimRule
from training.mechanism import Change, Mechanism
from training.outcome import Outcome, Series
from training.speeds import CurveSpeeds, Speeds
from training.table import Table
from training.view import Policy

PATIENCE = 100
"""Decisions that may give nobody anything before jobs wait for ever: some policies' time must come."""


@dataclass(frozen=True)
class World:
    """What a queue runs in: devices, the demand of inference for those that are lent, how fast jobs are."""

    fleet: Fleet
    demand: Demand | None = None
    reclaim: ReclaimRule = "cost"
    speeds: Speeds = field(default_factory=CurveSpeeds)
    seed: int = 0


def simulate(jobs: list[Job], world: World | Fleet, policy: Policy, estimates: Floats | None = None) -> Outcome:
    """Run the jobs (in order of arrival) to their ends. `estimates` are what policies believe of their seconds of
    work, [jobs]; the truth by default."""
    world = World(world) if isinstance(world, Fleet) else world
    return _Run(jobs, world, policy, estimates).run()


class _Run:
    def __init__(self, jobs: list[Job], world: World, policy: Policy, estimates: Floats | None) -> None:
        self.world = world
        self.table = Table(jobs, world.fleet)
        self.work = np.array([job.work_s for job in jobs])
        if not np.isfinite(self.work).all():
            raise InputError(f"job {jobs[int(np.argmax(np.isinf(self.work)))].id}: has no duration to simulate")
        self.table.estimate[:] = self.work if estimates is None else estimates
        self.mechanism = Mechanism(self.table, world.fleet, policy, world.reclaim, world.seed)
        self.round_s = policy.round_s
        self.due = math.inf
        self.ends: list[tuple[float, int, int]] = []
        self.version = np.zeros(len(jobs), np.int64)
        self.stage = self.work.copy()
        """Seconds of work by each job's next event."""
        self.arrived = 0
        self.loans = 0
        self.idle = 0
        """Decisions one after the other that gave nobody anything, with nothing else to come."""
        self.series = Series()
        self.lendable = np.flatnonzero(world.fleet.node_lendable)

    def run(self) -> Outcome:
        mechanism, table = self.mechanism, self.table
        while self.arrived < len(table) or len(mechanism.live):
            now = self._next()
            if math.isinf(now) or self.idle > PATIENCE:
                job = table.jobs[int(mechanism.live[0])]
                raise InputError(f"job {job.id}: waits for ever; {mechanism.policy.name} gives it nothing")
            if self._happen(now):
                self.due = min(self.due, self._round(now))
            if now >= self.due:
                changes = mechanism.decide(now)
                self._follow(changes, now)
                self.idle = self.idle + 1 if self._is_idle(changes) else 0
                self.due = max(mechanism.wake, math.nextafter(now, math.inf))
                self.series.add(now, mechanism)
        return Outcome.of(table, self.world, mechanism, self.series)

    def _is_idle(self, changes: list[Change]) -> bool:
        """Nobody has anything, and nothing but another decision can happen."""
        is_over = self.arrived == len(self.table) and math.isinf(self._next_loan())
        return is_over and not changes and not self.mechanism.ledger.held

    def _next(self) -> float:
        arrival = self.table.submit[self.arrived] if self.arrived < len(self.table) else math.inf
        while self.ends and self.ends[0][1] != self.version[self.ends[0][2]]:
            heapq.heappop(self.ends)
        end = self.ends[0][0] if self.ends else math.inf
        return float(min(arrival, end, self.due, self._next_loan()))

    def _next_loan(self) -> float:
        demand = self.world.demand
        return float(demand.time[self.loans]) if demand is not None and self.loans < len(demand.time) else math.inf

    def _round(self, now: float) -> float:
        return now if self.round_s <= 0 else math.ceil(now / self.round_s - 1e-9) * self.round_s

    def _happen(self, now: float) -> bool:
        """Everything that happens at this instant; whether anything did."""
        happened = False
        while self.ends and self.ends[0][0] <= now:
            _, version, row = heapq.heappop(self.ends)
            if version != self.version[row]:
                continue
            if self.stage[row] < self.work[row]:  # its speed changes, and it goes on
                self.table.settle(row, now)
                self.table.done[row] = self.stage[row]
                self._set_rate(row, now)
            else:
                self.version[row] += 1
                self.mechanism.finish(row, now)
                self.series.hold(row, now, 0)
                self.table.done[row] = self.work[row]
                happened = True
        first = self.arrived
        while self.arrived < len(self.table) and self.table.submit[self.arrived] <= now:
            self.arrived += 1
        if self.arrived > first:
            self.mechanism.submit(np.arange(first, self.arrived))
            happened = True
        while self._next_loan() <= now:
            self._follow(self._lend(now), now)
            happened = True
        self._follow([], now)
        return happened

    def _lend(self, now: float) -> list[Change]:
        """Lend what traffic does not need from now on, or take back what it does."""
        assert self.world.demand is not None
        needed = int(self.world.demand.servers[self.loans])
        self.loans += 1
        is_open = self.mechanism.ledger.node_open[self.lendable]
        more = max(len(self.lendable) - needed, 0) - int(is_open.sum())
        self.series.lend(now, int(is_open.sum()) + more)
        if more > 0:
            self.mechanism.lend(self.lendable[~is_open][:more])
        return self.mechanism.take_back(-more, now) if more < 0 else []

    def _follow(self, changes: list[Change], now: float) -> None:
        """Set the rates of the jobs that changed, and of those whose neighbours did."""
        table, ledger = self.table, self.mechanism.ledger
        for change in changes:
            self.series.hold(change.row, now, int(table.total[change.row]))
        for row in dict.fromkeys([*(change.row for change in changes), *ledger.disturbed()]):
            if row in ledger.held:
                self._set_rate(row, now)
            else:
                self.version[row] += 1

    def _set_rate(self, row: int, now: float) -> None:
        """Let a running job go on at the speed it has now, until it ends or its speed changes."""
        table, ledger, speeds = self.table, self.mechanism.ledger, self.world.speeds
        table.settle(row, now)
        rate = speeds.rate(table, ledger, row)
        if not rate > 0:
            name = self.mechanism.policy.name
            raise InputError(f"job {table.jobs[row].id}: makes no progress on what {name} gives it")
        table.rate[row] = rate
        self.stage[row] = min(self.work[row], speeds.until(table, ledger, row))
        self.version[row] += 1
        end = max(now, table.ready[row]) + max(self.stage[row] - table.done[row], 0.0) / rate
        heapq.heappush(self.ends, (end, int(self.version[row]), row))
