"""Decisions: every policy of the simulator, unchanged, on what a store knows."""

import math
import random

import pytest

from placement.cluster import Cluster, Node
from placement.units import Bytes
from tests.training.queue.worlds import cluster, job
from training.fleet import Fleet
from training.policies import ENTRIES, live_policy, policy_named
from training.queue import Quota
from training.queue.allowed import allowed
from training.queue.decision import Decider, OpenDevices, recalled
from training.queue.guesses import UNKNOWN_S, guess_work
from training.queue.record import Observed, Record

NOW = 1.8e9


def record(number, submission, age_s=100.0, **more):
    arrival = NOW - age_s
    words = {"state": "running" if more.get("devices") else "queued", "why": ""} | more
    observed = more.pop("observed", Observed(since=arrival, queued_since=arrival))
    words |= {"observed": observed, "arrival": arrival, "submitted": arrival, "due": arrival}
    return Record(id=submission.id, number=number, user=submission.user, type="command", job=submission, **words)


def follow(jobs, decision):
    """The jobs as they are when the decision is carried out."""
    steps = {step.record.id: step for step in decision.steps}
    return [
        record(
            one.number,
            one.job,
            NOW - one.arrival,
            devices=steps[one.id].devices if one.id in steps else one.devices,
            share=steps[one.id].share if one.id in steps else one.share,
            observed=steps[one.id].observed if one.id in steps else one.observed,
        )
        for one in jobs
    ]


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_policy_decides_on_live_jobs(name):
    rng = random.Random(3)
    nodes = Cluster((Node("n0", 4, Bytes(2**30), kind="cpu"), Node("n1", 4, Bytes(2**30), kind="cpu")))
    jobs = []
    for number in range(9):
        gpus = rng.choice([1, 1, 2, 4])
        elastic = {"min_gpus": 1, "max_gpus": 2 * gpus} if number % 3 == 0 else {}
        words = {"gpus": gpus, "user": "ab"[number % 2], "deadline": 5000, "duration": rng.choice([50, 500])}
        jobs.append(record(number, job(f"j{number}", **words | elastic), 200.0 - number))
    ended = [record(20 + n, job(f"e{n}"), 900.0 - n, ended=NOW - 300, observed=Observed(done=60.0)) for n in range(3)]
    decider = Decider(policy_named(name))
    closed = {"n1/3"}
    devices = OpenDevices.of(nodes, [device.name for device in nodes.devices if device.name not in closed])
    decision = decider.decide(jobs, ended, devices, NOW)
    held = [name for one in follow(jobs, decision) for name in one.devices for _ in range(1)]
    assert held, "it gives nobody anything"
    assert not closed & set(held)
    share = dict.fromkeys(devices.names, 0.0)
    for one in follow(jobs, decision):
        assert not one.devices or len(one.devices) >= one.job.fewest or one.job.share < 1
        for device in one.devices:
            share[device] += one.share
    assert max(share.values()) <= 1 + 1e-9
    later = decider.decide(follow(jobs, decision), ended, devices, NOW + 5)  # goes on from there
    for step in later.steps:
        assert not closed & set(step.devices)


def test_a_device_that_is_gone_shrinks_or_suspends():
    rigid = record(0, job("rigid", gpus=2), devices=("n0/0", "n0/1"), observed=Observed(since=NOW - 10, starts=1))
    elastic = record(
        1, job("elastic", gpus=2, min_gpus=1), devices=("n0/2", "n0/3"), observed=Observed(since=NOW - 10, starts=1)
    )
    devices = OpenDevices.of(cluster(4), ["n0/1", "n0/3"])
    steps = {
        step.record.id: step for step in Decider(policy_named("fcfs")).decide([rigid, elastic], [], devices, NOW).steps
    }
    assert steps["rigid"].devices == ()
    assert steps["rigid"].observed.attained == pytest.approx(20)
    assert steps["elastic"].devices == ("n0/3",)
    assert OpenDevices.of(cluster(4), []) is None


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_a_kind_of_which_nothing_is_open_may_still_be_named(name):
    nodes = Cluster((Node("n0", 2, Bytes(2**30), kind="cpu"), Node("n1", 2, Bytes(2**30), kind="gpu")))
    devices = OpenDevices.of(nodes, ["n0/0", "n0/1"])
    assert devices.fleet.kinds == ("cpu", "gpu")
    assert devices.fleet.capacity.tolist() == [2, 0]
    words = {"speeds": {"cpu": 1.0, "gpu": 5.0}, "min_gpus": 1, "max_gpus": 2, "duration": 100, "deadline": 900}
    jobs = [record(n, job(f"j{n}", **words), 100.0 - n) for n in range(2)]
    steps = Decider(policy_named(name)).decide(jobs, [], devices, NOW).steps
    assert steps
    assert all(set(step.devices) <= set(devices.names) for step in steps)
    held = record(5, job("h", gpus=2, **words), devices=("n0/0", "n1/0"))
    assert recalled(held, devices, policy_named(name), NOW).devices == ("n0/0",)


def test_nothing_to_decide():
    devices = OpenDevices.of(cluster(1), ["n0/0"])
    assert Decider(policy_named("fcfs")).decide([], [], devices, NOW).wake == math.inf
    waiting, held = record(0, job("a")), record(1, job("b"), devices=("n0/0",))
    assert Decider(policy_named("fcfs")).decide([waiting, held], [], devices, NOW).steps == ()


def test_quotas_choose_whom_a_policy_sees():
    fleet = Fleet(cluster(8))
    jobs = [
        record(0, job("elsewhere", user="u"), devices=("m/0",), controller="other"),
        record(1, job("waits", user="u", gpus=2)),
        record(2, job("runs", user="u", gpus=1, max_gpus=4), devices=("n0/0",)),
        record(3, job("urgent", user="u", gpus=1, priority=9)),
        record(4, job("free", user="v", gpus=1, max_gpus=8)),
        record(5, job("huge", user="v", gpus=9)),
        record(6, job("early", user="v"), -50.0),
    ]
    seen = allowed(jobs, lambda one: one.controller is None, fleet, {"u": Quota(devices=4)}, NOW)
    assert {one.id: (one.job.gpus, one.job.most) for one in seen} == {
        "runs": (1, 2),  # what is left of four when one is elsewhere and one is urgent
        "urgent": (1, 1),
        "free": (1, 8),
    }


def test_guesses():
    ended = [
        record(n, job(f"e{n}", user=user, tag=tag), observed=Observed(done=done))
        for n, (user, tag, done) in enumerate(
            [("a", "x", 10), ("a", "x", 30), ("a", "x", 20), ("a", "", 500), ("b", "", 7)]
        )
    ]
    live = [
        job("said", duration=5),
        job("alike", user="a", tag="x"),
        job("user", user="b"),
        job("other", user="c"),
    ]
    assert guess_work([record(n, one) for n, one in enumerate(live)], ended) == [5, 20, 7, 20]
    outlived = record(0, job("o", user="a", tag="x"), observed=Observed(done=100))
    assert guess_work([outlived], ended) == [160]
    assert guess_work([record(0, job("first"))], []) == [UNKNOWN_S]


def test_nobody_knows_for_sure_how_long_live_jobs_run():
    assert all(live_policy(name, "predicted").information != "oracle" for name in ENTRIES)
    assert live_policy("penstock", "none").information == "none"
    # One that outlives what its user said does not keep its device for ever.
    late = record(
        0, job("late", duration=10.0), devices=("n0/0",), observed=Observed(since=NOW - 900, rate=1.0, starts=1)
    )
    short = record(1, job("short", duration=100.0))
    devices = OpenDevices.of(cluster(1), ["n0/0"])
    steps = Decider(live_policy("penstock", "predicted")).decide([late, short], [], devices, NOW).steps
    assert [(step.record.id, step.devices) for step in steps] == [("late", ()), ("short", ("n0/0",))]
