"""What policies know of ended jobs: live the same as simulated."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placement.cluster import Cluster, Node
from placement.units import Bytes
from tests.training.queue.worlds import job, running, service, shell, until
from tests.training.worlds import random_jobs
from training.fleet import Fleet
from training.policies import penstock, policy_named
from training.queue.decision import COLUMNS, Decider, OpenDevices
from training.queue.past import HISTORY, Past
from training.queue.record import Observed, Record
from training.simulator import simulate
from training.view import Policy

START = 1.8e9
"""The live clock's time when the simulated one is at 0."""


@dataclass(frozen=True)
class Watched:
    """A policy, and what it saw once so many jobs had ended."""

    policy: Policy
    ends: int
    seen: list[tuple[Any, ...]] = field(default_factory=list)
    name = "watched"
    information = "none"
    round_s = 0.0

    def allocate(self, view):
        allocation = self.policy.allocate(view)
        if len(view.finished) >= self.ends and not self.seen:
            table, rows = view._table, view.rows
            columns = {name: getattr(table, name)[rows].copy() for name in COLUMNS}
            held = {row: devices.copy() for row, devices in view.held.items()}
            past = [view.past_runs(HISTORY), view.finished.copy(), table.finish.copy(), table.attained.copy()]
            self.seen.append((view, columns, held, past, allocation.workers.copy(), view.run_s, allocation.wake))
        return allocation


def as_record(number, one, **more):
    submission = job(one.id, gpus=one.gpus)
    times = {"arrival": START + one.arrival, "submitted": START + one.arrival, "due": START + one.arrival}
    words = {"state": "queued", "why": ""} | times | more
    return Record(id=one.id, number=number, user="", type="command", job=submission, **words)


def test_live_decisions_are_the_simulators_when_thousands_have_ended():
    jobs = random_jobs(11, count=1300)
    nodes = Cluster(tuple(Node(f"n{n}", 8, Bytes(2**30), kind="cpu") for n in range(2)))
    blind = policy_named("penstock", information="none")
    watched = Watched(blind, penstock.ENOUGH + 50)
    simulate(jobs, Fleet(nodes), watched)
    view, columns, held, (runs, finished, finish, attained), workers, run_s, wake = watched.seen[0]
    assert len(view) > 3, "somebody has to wait for the comparison to say anything"
    devices = OpenDevices.of(nodes, [device.name for device in nodes.devices])
    ended = [
        as_record(
            row,
            jobs[row],
            state="finished",
            ended=START + finish[row],
            observed=Observed(done=run, run_s=run, attained=attained[row]),
        )
        for row, run in zip(finished.tolist(), runs[0].tolist(), strict=True)
    ]
    live = []
    for at, row in enumerate(view.rows.tolist()):
        words = {name: column[at].item() for name, column in columns.items()}
        words |= {name: START + words[name] for name in ("since", "ready", "queued_since")}
        mine = tuple(devices.names[device] for device in held.get(row, ()))
        live.append(as_record(row, jobs[row], devices=mine, observed=Observed(**words)))
    past = Past()
    past.add(ended)
    again = Watched(blind, 0)
    decision = Decider(again).decide(live, past.jobs, devices, START + view.now)
    there, _, _, (live_runs, *_), live_workers, live_run_s, live_wake = again.seen[0]
    assert len(there.finished) == len(finished) >= penstock.ENOUGH
    np.testing.assert_allclose(live_runs[0], runs[0])
    np.testing.assert_array_equal(live_runs[1], runs[1])
    np.testing.assert_allclose(live_run_s, run_s, atol=1e-5)
    np.testing.assert_array_equal(live_workers, workers)
    assert abs(live_wake - START - wake) < 1e-3
    holders = {record.id for record in live if record.devices}
    changed = {step.record.id: len(step.devices) for step in decision.steps}
    for record, wanted in zip(live, workers.sum(axis=1).tolist(), strict=True):
        assert changed.get(record.id, record.job.gpus if record.id in holders else 0) == wanted


def test_as_many_are_kept_as_the_policy_looks_at():
    assert HISTORY >= penstock.LATEST > penstock.ENOUGH


def test_those_that_ended_first_are_forgotten_first():
    past = Past(most=3)
    one = random_jobs(0, count=6)
    past.add([as_record(n, one[n], state="finished", ended=10.0 - n) for n in range(4)])
    assert [record.id for record in past.jobs] == ["2", "1", "0"]
    past.add([as_record(4, one[4], state="failed", ended=20.0), as_record(5, one[5], state="finished", ended=21.0)])
    past.add([as_record(0, one[0], state="finished", ended=10.0)])
    assert [record.id for record in past.jobs] == ["1", "0", "5"]


def test_what_ended_before_a_restart_and_since_is_seen(sqlite_store, tmp_path):
    async def through_two_controllers():
        for number in range(2):
            sqlite_store.submit([shell(f"a{number}", "true"), shell(f"b{number}", "exit 3")], "me")
            queue = service(sqlite_store, tmp_path / "jobs")
            async with running(queue):
                await until(lambda: not sqlite_store.live())
                await until(lambda queue=queue, number=number: len(queue._past.jobs) == number + 1)
        return [record.id for record in queue._past.jobs]

    assert asyncio.run(through_two_controllers()) == ["a0", "a1"]
