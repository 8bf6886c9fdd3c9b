"""Penstock's own policy: it runs ahead, lets pass who costs nobody, and works in every information class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    assert penstock.run_ahead(left, gpus, 2).tolist() == [1, 0]
    shorter = np.array([90.0, 100.0])
    assert penstock.run_ahead(shorter, gpus, 2).tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_letting_pass_never_costs_those_present(seed):
    rng = np.random.default_rng(seed)
    left, gpus = rng.integers(1, 50, 30) * 10.0, 2 ** rng.integers(0, 4, 30)
    chosen = penstock.run_ahead(left, gpus, 16)
    horizon, room = penstock.HORIZON * left.max(), Room.of(30)
    assert sorted(chosen) == list(range(30))
    found = time_there(chosen, left, gpus, 16, horizon, ABOVE, room)
    for power in penstock.POWERS:
        order = np.argsort(left * gpus**power, kind="stable")
        assert found <= time_there(order, left, gpus, 16, horizon, ABOVE, room) * (1 + 1e-6)


def test_of_short_jobs_service_decides_and_of_long_ones_width_too():
    # Beside 40 jobs on all of 10 GPUs there are 57,000 s of work at hand: time counts less from 5,700 s on.
    left, gpus = np.full(40, 1000.0), np.full(40, 10)
    short, long = np.array([90.0, 10.0, 90_000.0, 10_000.0]), np.array([1, 8, 1, 8])
    claim = penstock.claim(np.append(left, short), np.append(gpus, long), 10)
    service = np.append(left, short) * np.append(gpus, long)
    assert (claim[41] < claim[40]) == (service[41] < service[40])
    assert (claim[42] < claim[43]) != (service[42] < service[43])


@settings(max_examples=50, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.just(0.0) | st.floats(1e-6, 1e7), st.integers(1, 64)), min_size=1, max_size=200),
    capacity=st.integers(0, 512),
)
def test_everybody_has_one_place_and_more_of_the_same_is_never_before(jobs, capacity):
    left, gpus = np.array([time for time, _ in jobs]), np.array([width for _, width in jobs])
    assert sorted(penstock.soonest_gone(left, gpus, capacity)) == list(range(len(jobs)))
    claim = penstock.claim(left, gpus, capacity)
    for width in set(gpus.tolist()):
        same = gpus == width
        assert (np.diff(claim[same][np.argsort(left[same])]) >= 0).all()


def test_what_jobs_claim_does_not_depend_on_the_unit_of_time():
    rng = np.random.default_rng(1)
    left, gpus = rng.uniform(1, 1e6, 200), 2 ** rng.integers(0, 5, 200)
    order = penstock.soonest_gone(left, gpus, 64)
    assert order.tolist() == penstock.soonest_gone(left / 60, gpus, 64).tolist()


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


def test_where_few_jobs_are_very_long_the_narrow_of_them_go_first(monkeypatch):
    monkeypatch.setattr(penstock, "FEW", 8)
    waits = np.zeros(2)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        work, gpus = np.minimum(100 * rng.pareto(0.7, 600) + 100, 1e5).round(), 2 ** rng.integers(0, 4, 600)
        arrivals = np.sort(rng.uniform(0, (work * gpus).sum() / 64 / 1.5, 600))
        jobs = [job(n, arrivals[n], work[n], int(gpus[n])) for n in range(600)]
        waits += [run(jobs, 64, name).queue.mean() for name in ("penstock", "srsf")]
    assert waits[0] < 0.98 * waits[1]


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
