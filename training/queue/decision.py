"""One decision of the live queue: what the store knows becomes the policies' table, the policy and the mechanism of the
simulator decide, and what has changed comes out. Starts and stops nothing, and keeps nothing but when a policy asked
to count anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from placement.cluster import Cluster
from placement.errors import InputError
from placement.units import Seconds
from training.arrays import Ints
from training.fleet import Fleet
from training.jobs import Job
from training.mechanism import Mechanism
from training.queue.guesses import guess_work
from training.queue.record import Observed, Record
from training.queue.submission import Submission
from training.speeds import CurveSpeeds
from training.table import Table
from training.view import LEAST_S, Policy

COLUMNS = (
    *("done", "rate", "ready", "since", "attained", "run_s", "queued_since", "attained_before", "run_before"),
    *("waited", "tried", "starts", "preemptions", "migrations", "resizes"),
)
"""Of the table, as they stand in Observed."""
_TIMES = ("first_start", "last_start")
_SPEEDS = CurveSpeeds()


@dataclass(frozen=True)
class OpenDevices:
    """The devices that jobs may have now, as a fleet of their own."""

    fleet: Fleet
    names: tuple[str, ...]
    """In the fleet's order."""

    @staticmethod
    def of(cluster: Cluster, names: Sequence[str]) -> OpenDevices | None:
        """None where there are none."""
        is_open = set(names)
        chosen = [device for device in cluster.devices if device.name in is_open]
        if not chosen:
            return None
        counts = np.bincount([device.node for device in chosen], minlength=len(cluster.nodes)).tolist()
        # A node with nothing open stays: its kind is one that jobs may name.
        nodes = [msgspec.structs.replace(node, devices=n) for node, n in zip(cluster.nodes, counts, strict=True)]
        return OpenDevices(Fleet(Cluster(tuple(nodes))), tuple(device.name for device in chosen))


@dataclass(frozen=True)
class Step:
    """A job that shall have other devices than it has; none: it is suspended."""

    record: Record
    devices: tuple[str, ...]
    share: float
    observed: Observed


@dataclass(frozen=True)
class Decision:
    steps: tuple[Step, ...]
    """Those that give devices back first."""
    wake: float = math.inf
    """When to ask again if nothing happens before."""


@dataclass
class Decider:
    policy: Policy
    _counted_from: float = 0.0
    _time_before: dict[str, dict[str, float]] = field(default_factory=dict)

    def decide(self, jobs: Sequence[Record], ended: Sequence[Record], devices: OpenDevices, now: float) -> Decision:
        """`jobs` are those to decide on, in order of arrival, `ended` some that have ended."""
        if not jobs:
            return Decision(())
        desk = _Desk(jobs, ended, devices, self.policy, now)
        for record in jobs:
            desk.recall(record, self._time_before.get(record.id, {}))
        view = replace(desk.mechanism.view(now), finished=desk.finished, counted_from=self._counted_from)
        wanted = self.policy.allocate(view)
        if wanted.count_anew:
            self._counted_from = now
            kinds = devices.fleet.kinds
            self._time_before = {
                record.id: dict(zip(kinds, spent, strict=True))
                for record, spent in zip(jobs, view.time_on.tolist(), strict=True)
            }
        desk.mechanism.apply(wanted, view, now)
        return Decision(tuple(desk.steps()), float(wanted.wake))


def recalled(record: Record, devices: OpenDevices, policy: Policy, now: float) -> Step:
    """What becomes of a job that holds devices which are not open any more: it shrinks to what is left, or has nothing
    where that is too little. The policy is not asked."""
    desk = _Desk([record], [], devices, policy, now)
    desk.recall(record, {})
    return desk.steps()[0]


def at_fault(jobs: Sequence[Record], devices: OpenDevices, policy: Policy, now: float) -> dict[str, str]:
    """Of jobs on which no decision can be made together, those on which none can be made alone, and why."""
    found = {}
    for record in jobs:
        try:
            Decider(policy).decide([record], [], devices, now)
        except InputError as error:
            found[record.id] = f"cannot be decided on: {error}"
    return found


def warm_up(policy: Policy, cluster: Cluster) -> None:
    """Compile what the policy needs, on a job that is none: the first real one does not wait for it."""
    devices = OpenDevices.of(cluster, [device.name for device in cluster.devices])
    assert devices is not None
    job = Submission(id="warm-up", command=("true",), max_gpus=len(devices.names))
    Decider(policy).decide([Record.of(job, 1, 0.0)], [], devices, 1.0)


class _Desk:
    """The table and the mechanism of one decision."""

    def __init__(
        self, jobs: Sequence[Record], ended: Sequence[Record], devices: OpenDevices, policy: Policy, now: float
    ) -> None:
        self.jobs, self.devices, self.now = jobs, devices, now
        self.index = {name: number for number, name in enumerate(devices.names)}
        everybody = sorted([*ended, *jobs], key=lambda record: (record.arrival, record.number))
        self.row_of = {record.id: row for row, record in enumerate(everybody)}
        self.table = Table([_job(record) for record in everybody], devices.fleet)
        self.mechanism = Mechanism(self.table, devices.fleet, policy)
        self.mechanism.submit(self._rows(jobs))
        self.table.estimate[self._rows(jobs)] = guess_work(jobs, ended)
        last = sorted(ended, key=lambda record: record.ended or 0.0)
        self.finished = self._rows(last)
        self.table.finish[self.finished] = [record.ended for record in last]
        self.table.attained[self.finished] = [record.observed.attained for record in last]
        self.table.run_s[self.finished] = [record.observed.run_s for record in last]
        self.table.estimate[self.finished] = [max(record.observed.done, LEAST_S) for record in last]

    def recall(self, record: Record, time_before: dict[str, float]) -> None:
        """Write into the table what was observed, and into the ledger what the job has: of devices that are not open
        any more it has none, and where too few are left it has nothing."""
        table, row, fleet = self.table, self.row_of[record.id], self.devices.fleet
        held = [self.index[name] for name in record.devices if name in self.index]
        is_whole = len(held) == len(record.devices)
        kept = held if is_whole or len(held) >= record.job.fewest else []
        observed = record.observed
        if record.devices and not kept:
            kind = fleet.kinds[fleet.device_kind[held[0]]] if held else fleet.kinds[0]
            observed = observed.released(self.now, len(record.devices) * record.share, kind)
            observed = msgspec.structs.replace(observed, preemptions=observed.preemptions + 1)
        for name in COLUMNS:
            getattr(table, name)[row] = getattr(observed, name)
        for name in _TIMES:
            value = getattr(observed, name)
            getattr(table, name)[row] = math.nan if value is None else value
        table.time_on[row] = [observed.time_on.get(kind, 0.0) for kind in fleet.kinds]
        table.time_before[row] = [time_before.get(kind, 0.0) for kind in fleet.kinds]
        if kept:
            if not is_whole:
                table.settle(row, self.now)
                table.resizes[row] += 1
            devices = np.array(kept, np.int64)
            self.mechanism.ledger.take(row, devices, record.share, table.memory[row], table.cpus[row])
            table.workers[row] = np.bincount(fleet.device_kind[devices], minlength=table.kinds)
            table.total[row] = len(devices)
            table.in_use[row] = record.share

    def _rows(self, records: Sequence[Record]) -> Ints:
        return np.array([self.row_of[record.id] for record in records], np.int64)

    def steps(self) -> list[Step]:
        """What has become of each job, where anything has."""
        ledger, table = self.mechanism.ledger, self.table
        steps = []
        for record in self.jobs:
            row = self.row_of[record.id]
            held = ledger.held.get(row)
            devices = () if held is None else tuple(self.devices.names[device] for device in held.tolist())
            share = float(ledger.share_of(row)) if devices else record.share
            if set(devices) == set(record.devices) and share == record.share:
                continue
            if devices:
                table.rate[row] = _SPEEDS.rate(table, ledger, row)
            steps.append(Step(record, devices, share, self._observed(record, row)))
        return sorted(steps, key=lambda step: (bool(step.devices), not step.record.devices))

    def _observed(self, record: Record, row: int) -> Observed:
        table = self.table
        columns: dict[str, Any] = {name: getattr(table, name)[row].item() for name in COLUMNS}
        for name in _TIMES:
            value = getattr(table, name)[row].item()
            columns[name] = None if math.isnan(value) else value
        kinds = dict(zip(self.devices.fleet.kinds, table.time_on[row].tolist(), strict=True))
        time_on = record.observed.time_on | {kind: spent for kind, spent in kinds.items() if spent}
        for name, value in columns.items():
            if value is not None and not math.isfinite(value):
                raise InputError(f"job {record.id}: its {name} comes to {value}")
        return Observed(**columns, time_on=time_on)


def _job(record: Record) -> Job:
    """On the wall clock: a job's own times count from its submission."""
    job = record.job
    deadline = None if job.deadline is None else Seconds(record.submitted + job.deadline)
    words = {name: getattr(job, name) for name in Job.__struct_fields__}
    try:
        return Job(**words | {"arrival": Seconds(record.arrival), "deadline": deadline})
    except ValueError as error:
        raise InputError(str(error)) from error
