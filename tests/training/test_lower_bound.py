"""The lower bound on mean queueing: below every policy and every schedule, above nothing where jobs must wait."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.worlds import job, random_jobs, run
from training.lower_bound import bound_at, least_mean_queue

small_job = st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 3))
"""Arrival, duration, GPUs."""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("elastic", [0.0, 0.5])
def test_no_policy_is_below_it(seed, elastic):
    jobs = random_jobs(seed, count=40, elastic=elastic)
    bound = least_mean_queue(jobs, 8)
    assert bound > 0
    floor = np.array([j.work_s * j.gpus / j.most for j in jobs])
    for policy in ("srtf", "srsf", "sjf", "fcfs", "lyra", "optimus", "penstock"):
        assert bound <= (run(jobs, 8, policy).jct - floor).mean()


@settings(max_examples=60, deadline=None)
@given(st.lists(small_job, min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_no_schedule_of_a_small_queue_is_below_it_whatever_the_prices(rows, seed):
    best = best_of_all(tuple(rows), 3)
    jobs = [job(n, *row) for n, row in enumerate(rows)]
    assert least_mean_queue(jobs, 3, slots=40, rounds=60) <= best / len(rows) + 1e-6
    price = np.append(np.random.default_rng(seed).exponential(0.3, 20), 0.0)
    edges = np.append(np.linspace(0, 20, 21), 1e15)
    arrival, length, width = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    paid = bound_at(price, arrival, length, width, edges, np.empty(21))
    assert paid - 3 * price.sum() <= best + 1e-6


def best_of_all(rows, gpus):
    """The least queueing of all jobs together that running any set that fits, second by second, can have."""

    @cache
    def there(now, left):
        """Seconds that those who have come and not ended are still there, in all."""
        if not any(left):
            return 0
        present = [n for n, row in enumerate(rows) if row[0] <= now and left[n]]
        sets = [some for size in range(len(present) + 1) for some in combinations(present, size)]
        fitting = [some for some in sets if sum(rows[n][2] for n in some) <= gpus and (some or not present)]
        after = (tuple(rest - (n in some) for n, rest in enumerate(left)) for some in fitting)
        return len(present) + min(there(now + 1, rest) for rest in after)

    return there(0, tuple(row[1] for row in rows)) - sum(row[1] for row in rows)


def test_one_of_two_equal_jobs_waits():
    # The second of two waits for all of the first: 50 s on average; cut at will, the mean times of work are the same.
    jobs = [job(0, 0, 100, 1), job(1, 0, 100, 1)]
    assert 49 < least_mean_queue(jobs, 1) <= 50 + 1e-6
    assert least_mean_queue(jobs, 2) == 0
