"""Predicted durations: recurring jobs are known, jobs that break off mislead nobody, nothing of the future is seen."""

from __future__ import annotations

import numpy as np
import pytest

from placement.errors import InputError
from tests.training.worlds import job
from training.pai_load import PaiLoad, pai_jobs
from training.prediction import errors_of, features, predict

DAY = 86400.0


def recurring(seed, count=600, sigma=0.1):
    """Twelve tags of one user, each with its own length."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(6, 1.5, 12))
    tags = rng.integers(12, size=count)
    times = np.sort(rng.uniform(0, 4 * DAY, count))
    return [
        job(n, times[n], float(lengths[tag] * np.exp(sigma * rng.standard_normal())), 1, user="ann", tag=f"t{tag}")
        for n, tag in enumerate(tags.tolist())
    ]


def test_recurring_jobs_are_known_by_their_tag():
    jobs = recurring(0)
    predicted = predict(jobs[:300], jobs[300:])
    found = errors_of(predicted, jobs[300:])
    assert found.within_quarter > 0.95
    one_for_all = np.full(300, np.median([j.work_s for j in jobs[:300]]))
    assert found.mean_log < 0.2 * errors_of(one_for_all, jobs[300:]).mean_log


def test_the_paper_s_figure_on_the_generated_load():
    jobs = pai_jobs(PaiLoad(days=3, scale=0.25))
    past, now = [j for j in jobs if j.arrival < DAY], [j for j in jobs if j.arrival >= DAY]
    assert errors_of(predict(past, now), now, by_worker=True).within_quarter >= 0.78


def test_what_has_not_ended_is_not_seen():
    jobs = recurring(1, count=80)
    table = features(jobs)
    longer = [*jobs[:-1], job(79, jobs[-1].arrival, 5 * DAY, 1, user="ann", tag=jobs[-1].tag)]
    assert (features(longer) == table).all()
    early = [job(n, 0.0, 100, 1, tag="a") for n in range(3)]
    assert (features(early)[:, -4:] == 0).all()


def test_errors_are_what_they_say():
    jobs = [job(0, 0, 100, 1), job(1, 0, 100, 3)]
    assert errors_of(np.array([110.0, 200.0]), jobs).within_quarter == 0.5
    found = errors_of(np.array([110.0, 200.0]), jobs, by_worker=True)
    assert found.within_quarter == 0.25
    assert found.median == pytest.approx(1.0)
    assert found.mean_log == pytest.approx((np.log(1.1) + 3 * np.log(2)) / 4)


def test_without_a_past_nothing_is_predicted():
    jobs = recurring(2, count=10)
    for past, now in ((jobs, []), ([], jobs), ([job(0, 0, 9 * DAY)], jobs)):
        with pytest.raises(InputError, match="jobs that have ended"):
            predict(past, now)
