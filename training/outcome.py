"""What came of a simulated queue: per job, over time, and in the figures that policies are compared by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from training.arrays import Floats, Ints

if TYPE_CHECKING:
    from training.mechanism import Mechanism
    from training.simulator import World
    from training.table import Table


class Span(NamedTuple):
    """A run of one job without a change of workers."""

    row: int
    start: float
    end: float
    workers: int


@dataclass
class Series:
    """What stood after each decision."""

    time: list[float] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)
    loans: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many nodes were lent from then on."""
    spans: list[Span] = field(default_factory=list)
    _open: dict[int, tuple[float, int]] = field(default_factory=dict)

    def hold(self, row: int, now: float, workers: int) -> None:
        """A job has so many workers from now on."""
        if row in self._open:
            start, before = self._open.pop(row)
            if now > start:
                self.spans.append(Span(row, start, now, before))
        if workers:
            self._open[row] = (now, workers)

    def add(self, now: float, mechanism: Mechanism) -> None:
        self.time.append(now)
        self.busy.append(int(np.count_nonzero(mechanism.ledger.free < 1)))
        self.queued.append(len(mechanism.live) - len(mechanism.ledger.held))

    def lend(self, now: float, nodes: int) -> None:
        self.loans.append((now, nodes))

    def lent_s(self, until: float) -> float:
        """Node-seconds on loan by then."""
        if not self.loans:
            return 0.0
        time, nodes = (np.array(column, np.float64) for column in zip(*self.loans, strict=True))
        return float((np.diff(np.minimum(np.append(time, np.inf), until)) * nodes).sum())


@dataclass(frozen=True)
class Outcome:
    """Columns are [jobs], in order of arrival."""

    ids: list[str]
    submit: Floats
    first_start: Floats
    finish: Floats
    run_s: Floats
    """With workers; restarting counts."""
    work_s: Floats
    """What the job would take with what it asked for."""
    service: Floats
    """Device-seconds."""
    gpus: Ints
    deadline: Floats
    preemptions: Ints
    migrations: Ints
    time_on: Floats
    """Seconds by kind, [jobs, kinds]"""
    capacity_s: float
    """Device-seconds that training could have used."""
    series: Series
    policy: str
    reclaimed: int = 0
    scaled_in: int = 0
    overall: float | None = None
    """Use of all devices, inference's part included; None without loans."""

    @staticmethod
    def of(table: Table, world: World, mechanism: Mechanism, series: Series) -> Outcome:
        fleet = world.fleet
        begin, end = float(table.submit.min()), float(table.finish.max())
        size = float(fleet.node_size[fleet.node_lendable].mean()) if fleet.node_lendable.any() else 0.0
        own = float(fleet.node_size[~fleet.node_lendable].sum()) * (end - begin)
        capacity_s = own + size * (series.lent_s(end) - series.lent_s(begin))
        overall = None
        if world.demand is not None:
            traffic = size * (world.demand.busy_s(end) - world.demand.busy_s(begin))
            overall = (float(table.attained.sum()) + traffic) / (float(fleet.node_size.sum()) * (end - begin))
        return Outcome(
            ids=[job.id for job in table.jobs],
            submit=table.submit,
            first_start=table.first_start,
            finish=table.finish,
            run_s=table.run_s,
            work_s=np.array([job.work_s for job in table.jobs]),
            service=table.attained,
            gpus=table.gpus,
            deadline=table.deadline,
            preemptions=table.preemptions,
            migrations=table.migrations,
            time_on=table.time_on,
            capacity_s=capacity_s,
            series=series,
            policy=mechanism.policy.name,
            reclaimed=mechanism.reclaims,
            scaled_in=mechanism.scaled_in,
            overall=overall,
        )

    @property
    def jct(self) -> Floats:
        return self.finish - self.submit

    @property
    def queue(self) -> Floats:
        """Seconds without workers."""
        return self.jct - self.run_s

    @property
    def rho(self) -> Floats:
        """Finish-time fairness: JCT against running alone with what it asked for."""
        return self.jct / self.work_s

    def summary(self) -> dict[str, Any]:
        """The fields of `penstock train simulate --json`."""
        jct, queue, rho = self.jct, np.maximum(self.queue, 0.0), self.rho
        with_deadline = np.isfinite(self.deadline)
        missed = int((self.finish[with_deadline] > self.deadline[with_deadline]).sum())
        return {
            "policy": self.policy,
            "jobs": len(self.ids),
            "mean_jct": float(jct.mean()),
            **{f"{name}_jct": value for name, value in _spread(jct).items()},
            "mean_queue": float(queue.mean()),
            **{f"{name}_queue": value for name, value in _spread(queue).items()},
            "makespan": float(self.finish.max() - self.submit.min()),
            "preemptions": int(self.preemptions.sum()),
            "migrations": int(self.migrations.sum()),
            "preempted_jobs": int((self.preemptions > 0).sum()),
            "reclaimed": self.reclaimed,
            "scaled_in": self.scaled_in,
            "utilization": float(self.service.sum()) / self.capacity_s,
            "overall_utilization": self.overall,
            "mean_rho": float(rho.mean()),
            "max_rho": float(rho.max()),
            "deadlines": int(with_deadline.sum()),
            "deadlines_missed": missed,
        }


def _spread(values: Floats) -> dict[str, float]:
    return {name: float(np.percentile(values, point)) for name, point in (("median", 50), ("p95", 95), ("p99", 99))}
