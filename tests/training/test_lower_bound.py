"""The lower bound on mean queueing: below every policy, above nothing where jobs must wait."""

from __future__ import annotations

import pytest

from tests.training.worlds import job, random_jobs, run
from training.lower_bound import least_mean_queue


@pytest.mark.parametrize("seed", [0, 1])
def test_no_policy_is_below_it(seed):
    jobs = random_jobs(seed, count=40)
    bound = least_mean_queue(jobs, 8)
    assert bound > 0
    for policy in ("srtf", "srsf", "sjf", "fcfs", "penstock"):
        assert bound <= run(jobs, 8, policy).queue.mean()


def test_one_of_two_equal_jobs_waits():
    # The second of two waits for all of the first: 50 s on average; cut at will, both end half as late on average.
    jobs = [job(0, 0, 100, 1), job(1, 0, 100, 1)]
    assert 40 < least_mean_queue(jobs, 1, intervals=400) <= 50
    assert least_mean_queue(jobs, 2, intervals=400) == pytest.approx(0, abs=1)
