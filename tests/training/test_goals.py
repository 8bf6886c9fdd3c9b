"""Deadlines, energy, prices, guarantees: Chronus, ANDREAS, AOnline, AntMan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.training.worlds import fleet, job, nodes, random_jobs, run
from training.policies.aonline import price
from training.policies.chronus import plan


def test_chronus_meets_every_feasible_deadline():
    # The long job must begin at once though its deadline is late; earliest deadline first alone would fail it.
    jobs = [
        job(0, 0, 600, 2, deadline=1800),
        job(1, 0, 1500, 1, deadline=1500),
        job(2, 0, 900, 1, deadline=1800),
        job(3, 0, 3000, 3),
    ]
    outcome = run(jobs, 3, "chronus", lease_s=300.0)
    assert (outcome.finish[:3] <= outcome.deadline[:3]).all()


@pytest.mark.parametrize("seed", range(4))
def test_chronus_admits_as_many_as_exhaustive_search(seed):
    rng = np.random.default_rng(seed)
    jobs = [job(n, 0, 100 * int(rng.integers(1, 4)), 1, deadline=100 * int(rng.integers(2, 5))) for n in range(5)]
    outcome = run(jobs, 2, "chronus", lease_s=100.0)
    met = int((outcome.finish <= outcome.deadline + 1e-6).sum())
    best = 0
    for count in range(5, 0, -1):
        if any(_feasible([jobs[n] for n in chosen], 2) for chosen in itertools.combinations(range(5), count)):
            best = count
            break
    assert met == best


def _feasible(jobs, gpus):
    """Whether slots can be given out to one-GPU jobs: least slack first finds a way where there is one."""
    left = {n: int(j.duration // 100) for n, j in enumerate(jobs)}
    for slot in range(10):
        ready = [n for n in left if left[n] > 0]
        ready.sort(key=lambda n: jobs[n].deadline // 100 - slot - left[n])
        for n in ready[:gpus]:
            left[n] -= 1
        if any(left[n] > 0 and jobs[n].deadline // 100 <= slot + 1 for n in left):
            return False
    return all(value == 0 for value in left.values())


def test_chronus_plans_the_first_lease():
    now = plan(np.array([2.0, 1.0]), np.array([2.0, 2.0]), np.array([1, 1]), 1, 4)
    assert now.tolist() in ([True, False], [False, True])
    assert plan(np.array([2.0, 1.0]), np.array([2.0, 3.0]), np.array([1, 1]), 1, 4).tolist() == [True, False]


def test_andreas_takes_the_frugal_kind_when_there_is_time_and_the_fast_one_when_not():
    where = fleet(nodes(1, 1), nodes(1, 1, "t4", "t"), speeds={"v100": 1.0, "t4": 0.5})
    relaxed = run([job(0, 0, 100, 1, deadline=1000)], where, "andreas", watts=(300.0, 70.0))
    hurried = run([job(0, 0, 100, 1, deadline=120)], where, "andreas", watts=(300.0, 70.0))
    assert relaxed.time_on[0].tolist() == [0, 200]
    assert hurried.time_on[0].tolist() == [100, 0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_andreas_needs_less_energy_than_the_greedy(seed):
    rng = np.random.default_rng(seed)
    jobs = [
        job(n, j.arrival, j.duration, min(j.gpus, 4), deadline=j.arrival + float(rng.uniform(3, 9)) * j.duration)
        for n, j in enumerate(random_jobs(seed, count=25))
    ]
    where = fleet(nodes(1, 8), nodes(2, 8, "t4", "t"), speeds={"v100": 1.0, "t4": 0.4})
    watts = np.array([300.0, 70.0])

    def costs(policy, **options):
        outcome = run(jobs, where, policy, **options)
        energy = float((outcome.time_on * outcome.gpus[:, None] @ watts).sum())
        return energy, energy + 1000.0 * float(np.maximum(outcome.finish - outcome.deadline, 0).sum())

    # The greedy takes the fastest device that is free.
    ours, fastest = costs("andreas", watts=tuple(watts)), costs("fcfs")
    assert ours[0] < fastest[0]
    assert ours[1] < 0.95 * fastest[1]
    assert ours[1] <= 1.02 * costs("andreas", watts=tuple(watts), tries=1)[1]


def test_prices_rise_with_use_and_refuse_what_is_worth_little():
    use = np.linspace(0, 1, 5)
    assert (np.diff(price(use, 1.0, 100.0)) > 0).all()
    assert price(np.array([0.0, 1.0]), 1.0, 100.0).tolist() == [1.0, 100.0]
    # Nearly full with valuable jobs: the large one waits, the small one that comes later does not.
    jobs = [*(job(n, 0, 100, 1) for n in range(3)), job(3, 1, 10_000, 1), job(4, 2, 10, 1)]
    outcome = run(jobs, 4, "aonline")
    assert outcome.first_start[4] < outcome.first_start[3]


def test_aonline_ends_everything():
    assert np.isfinite(run(random_jobs(1, count=40, elastic=0.5), 16, "aonline").finish).all()


def test_antman_never_slows_a_guaranteed_job():
    jobs = [job(0, 0, 100, 1, priority=1), job(1, 0, 100, 1), job(2, 10, 100, 1, priority=1)]
    outcome = run(jobs, 2, "antman")
    assert outcome.finish[[0, 2]].tolist() == [100, 110]
    # The opportunistic one has a device to itself for 10 s, then a fifth of it until one is free again.
    assert 110 < outcome.finish[1] < 200
    assert outcome.queue[1] == 0


def test_antman_uses_what_would_be_idle():
    jobs = [job(n, 0, 1000, 1, priority=1) for n in range(4)] + [job(n, 0, 50, 1) for n in range(4, 8)]
    shared, alone = run(jobs, 4, "antman"), run(jobs, 4, "fcfs")
    assert shared.jct[:4].tolist() == alone.jct[:4].tolist()
    assert shared.jct[4:].max() < 0.3 * alone.jct[4:].min()
