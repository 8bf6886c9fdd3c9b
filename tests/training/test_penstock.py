"""Penstock's own policy: it runs ahead, lets pass who costs nobody, and works in every information class."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.worlds import job, random_jobs, run
from training.ahead import ABOVE, Room, time_there
from training.estimates import with_error
from training.fleet import Fleet
from training.policies import penstock, policy_named
from training.simulator import simulate


def there(jobs, order, gpus, horizon=1e9, limit=ABOVE):
    work, width = np.array([j.duration for j in jobs], float), np.array([j.gpus for j in jobs])
    return time_there(np.array(order), work, width, gpus, float(horizon), float(limit), Room.of(len(jobs)))


def test_running_ahead_is_the_simulator():
    jobs = [job(n, 0, j.duration, j.gpus) for n, j in enumerate(random_jobs(4, count=40))]
    order = np.argsort([j.duration for j in jobs], kind="stable")
    assert there(jobs, order, 8) == pytest.approx(run(jobs, 8, "sjf").jct.sum())


def test_it_looks_no_further_than_the_horizon_and_the_limit():
    jobs = [job(0, 0, 10, 1), job(1, 0, 30, 1)]
    assert there(jobs, [0, 1], 1) == 50
    assert there(jobs, [0, 1], 1, horizon=25) == 35
    assert there(jobs, [1, 0], 1, limit=50) == ABOVE


def test_a_wide_job_passes_where_nobody_pays():
    # Either way the jobs are there for 300 s together; who comes next finds it easier to pass the narrow one.
    left, gpus = np.array([100.0, 100.0]), np.array([1, 2])
    wide_first = penstock.run_ahead(left, gpus, 2, everyone=True)
    assert wide_first.tolist() == [1, 0]
    assert penstock.run_ahead(left, gpus, 2, everyone=False).tolist() == [0, 1]
    shorter = np.array([90.0, 100.0])
    assert penstock.run_ahead(shorter, gpus, 2, everyone=True).tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_letting_pass_never_costs_those_present(seed):
    rng = np.random.default_rng(seed)
    left, gpus = rng.integers(1, 50, 30) * 10.0, 2 ** rng.integers(0, 4, 30)
    room = Room.of(30)
    plain = penstock.run_ahead(left, gpus, 16, everyone=False)
    passed = penstock.run_ahead(left, gpus, 16, everyone=True)
    horizon = penstock.HORIZON * left.max()
    assert sorted(passed) == list(range(30))
    before = time_there(plain, left, gpus, 16, horizon, ABOVE, room)
    assert time_there(passed, left, gpus, 16, horizon, ABOVE, room) <= before * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_choosing_the_power_as_it_goes_beats_remaining_service(seed):
    jobs = random_jobs(seed, count=200)
    assert run(jobs, 8, "penstock").queue.mean() <= 0.98 * run(jobs, 8, "srsf").queue.mean()


def test_a_job_that_outlives_its_prediction_does_not_stay_first():
    jobs = [job(0, 0, 1000, 1), job(1, 500, 100, 1)]
    wrong = np.array([10.0, 100.0])
    ours = simulate(jobs, Fleet.of(1), policy_named("penstock", information="predicted"), wrong)
    assert ours.finish.tolist() == [1100, 600]
    assert simulate(jobs, Fleet.of(1), policy_named("srtf"), wrong).finish.tolist() == [1000, 1100]


def test_with_many_jobs_it_plans_for_those_around_the_border(monkeypatch):
    jobs = random_jobs(7, count=400)
    exact = run(jobs, 8, "penstock").queue.mean()
    monkeypatch.setattr(penstock, "FEW", 8)
    assert exact <= run(jobs, 8, "penstock").queue.mean() <= 1.02 * run(jobs, 8, "srsf").queue.mean()


def test_without_durations_waiting_counts_a_little_and_no_more():
    # Both are past the threshold: the one with more service runs, and its wait of before counts for little.
    jobs = [job(0, 0, 40_000, 1), job(1, 10, 11_000, 1), job(2, 20_000, 100, 1)]
    blind = run(jobs, 1, "penstock", information="none")
    assert blind.finish.tolist() == [40_000 + 10_800 + 100, 40_000 + 11_000 + 100, 21_700]


def test_without_durations_it_beats_first_come_first_served():
    jobs = [job(n, j.arrival, 40 * j.duration, j.gpus) for n, j in enumerate(random_jobs(3, count=120))]
    jobs = [job(n, 40 * j.arrival, j.duration, j.gpus) for n, j in enumerate(jobs)]
    blind = run(jobs, 8, "penstock", information="none")
    assert blind.queue.mean() < run(jobs, 8, "fcfs").queue.mean()


def test_elastic_jobs_grow_and_shrink():
    jobs = [job(0, 0, 100, 2, min_gpus=2, max_gpus=4), job(1, 10, 20, 2)]
    assert run(jobs, 4, "penstock").finish.tolist() == pytest.approx([60, 30])


def test_elastic_jobs_grow_and_shrink_without_durations_too():
    jobs = [job(0, 0, 100, 2, min_gpus=1, max_gpus=4), job(1, 10, 20, 3)]
    blind = run(jobs, 4, "penstock", information="none")
    # 20 of 100 s of two done by 10 s; then on one GPU beside the other; then on all four.
    assert blind.finish.tolist() == pytest.approx([30 + (100 - 20 - 10) / 2, 30])
    assert blind.preemptions.sum() == 0
    rigid = run(jobs, 4, "penstock", information="none", elastic=False)
    assert rigid.preemptions.sum() + (rigid.queue > 0).sum() > 0


@pytest.mark.parametrize("seed", range(3))
def test_without_elastic_jobs_nothing_of_that_matters(seed):
    jobs = random_jobs(seed, count=80)
    grows = run(jobs, 8, "penstock", information="none")
    assert grows.finish.tolist() == run(jobs, 8, "penstock", information="none", elastic=False).finish.tolist()


@pytest.mark.parametrize("sigma", [0.25, 1.0])
def test_it_bears_wrong_predictions(sigma):
    jobs = random_jobs(5, count=150)
    policy = policy_named("penstock", information="predicted")
    wrong = simulate(jobs, Fleet.of(8), policy, with_error(jobs, sigma, seed=1))
    assert wrong.queue.mean() < run(jobs, 8, "fcfs").queue.mean()
