"""Penstock's own policy: it learns from its past, beats what it learned from, and works in every information class."""

from __future__ import annotations

import numpy as np
import pytest

from tests.training.worlds import job, random_jobs, run
from training.estimates import with_error
from training.fleet import Fleet
from training.kernels import replay
from training.policies import policy_named
from training.simulator import simulate


def replayed(jobs, gpus, power):
    size = len(jobs)
    columns = [np.array([getattr(j, name) for j in jobs], float) for name in ("arrival", "duration")]
    widths = np.array([j.gpus for j in jobs], np.int64)
    room = np.zeros(size), np.zeros(size), np.zeros(size, np.int64), np.zeros(size, np.bool_)
    return replay(*columns, widths, gpus, power, *room)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_replay_is_the_simulator(seed):
    jobs = random_jobs(seed, count=80)
    assert replayed(jobs, 8, 1.0) == pytest.approx(run(jobs, 8, "srsf").queue.mean(), abs=1e-6)
    assert replayed(jobs, 8, 0.0) == pytest.approx(run(jobs, 8, "srtf").queue.mean(), rel=0.02)


def test_it_learns_the_power_that_serves_the_queue():
    from training.policies.penstock import POWERS

    jobs = random_jobs(7, count=400)
    waits = {power: replayed(jobs[:256], 8, power) for power in POWERS}
    ours = run(jobs, 8, "penstock").queue.mean()
    assert ours <= 1.05 * run(jobs, 8, "srsf").queue.mean()
    assert min(waits.values()) <= waits[1.0]


def test_without_durations_it_beats_first_come_first_served():
    jobs = [job(n, j.arrival, 40 * j.duration, j.gpus) for n, j in enumerate(random_jobs(3, count=120))]
    jobs = [job(n, 40 * j.arrival, j.duration, j.gpus) for n, j in enumerate(jobs)]
    blind = run(jobs, 8, "penstock", information="none")
    assert blind.queue.mean() < run(jobs, 8, "fcfs").queue.mean()


def test_elastic_jobs_grow_and_shrink():
    jobs = [job(0, 0, 100, 2, min_gpus=2, max_gpus=4), job(1, 10, 20, 2)]
    assert run(jobs, 4, "penstock").finish.tolist() == pytest.approx([60, 30])


@pytest.mark.parametrize("sigma", [0.25, 1.0])
def test_it_bears_wrong_predictions(sigma):
    jobs = random_jobs(5, count=150)
    policy = policy_named("penstock", information="predicted")
    wrong = simulate(jobs, Fleet.of(8), policy, with_error(jobs, sigma, seed=1))
    assert wrong.queue.mean() < run(jobs, 8, "fcfs").queue.mean()
