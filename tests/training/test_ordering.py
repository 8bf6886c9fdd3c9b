"""Policies that are an order: the lecture's example, a small queue by hand, and laws of any queue."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.worlds import job, lecture_jobs, random_jobs, run
from training.fleet import Fleet
from training.policies import ENTRIES, policy_named
from training.simulator import simulate

ORDERINGS = ("fcfs", "sjf", "srtf", "srsf", "priority", "fewest-gpus", "tiresias-las", "tiresias-gittins")


@pytest.mark.parametrize(
    ("policy", "jct", "makespan"),
    [
        ("fcfs", [30, 10, 34, 66], 70),
        ("sjf", [39, 10, 25, 62], 66),
        ("priority", [30, 53, 51, 40], 53),
    ],
)
def test_the_lecture_example_comes_out_exactly(policy, jct, makespan):
    outcome = run(lecture_jobs(), 2, policy)
    assert outcome.jct.tolist() == jct
    assert outcome.summary()["makespan"] == makespan
    assert outcome.summary()["mean_jct"] == np.mean(jct)


def test_strict_blocks_and_backfill_fills():
    jobs = [job(0, 0, 10, 1), job(1, 1, 10, 2), job(2, 2, 5, 1)]
    assert run(jobs, 2, "fcfs", strict=True).finish.tolist() == [10, 20, 25]
    assert run(jobs, 2, "fcfs").finish.tolist() == [10, 20, 7]


def test_remaining_time_and_remaining_service_differ():
    jobs = [job(0, 0, 10, 4), job(1, 0, 30, 1), job(2, 0, 30, 1)]
    assert run(jobs, 4, "srtf").first_start.tolist() == [0, 10, 10]
    assert run(jobs, 4, "srsf").first_start.tolist() == [30, 0, 0]


def test_fewest_gpus_first_preempts_the_large():
    outcome = run([job(0, 0, 10, 2), job(1, 4, 3, 1)], 2, "fewest-gpus")
    assert outcome.finish.tolist() == [13, 7]
    assert outcome.preemptions.tolist() == [1, 0]


def test_las_demotes_at_its_threshold_and_keeps_the_order_within_a_queue():
    # The second arrives when the first has 100 GPU-seconds left before demotion.
    jobs = [job(0, 0, 1000, 1), job(1, 400, 100, 1)]
    outcome = run(jobs, 1, "tiresias-las", thresholds=(500.0,))
    assert outcome.first_start.tolist() == [0, 500]
    assert outcome.finish.tolist() == [1100, 600]


def test_las_without_promotion_starves_and_with_it_does_not():
    jobs = [job(0, 0, 400, 1), *(job(n, 100 * n, 100, 1) for n in range(1, 40))]
    starved = run(jobs, 1, "tiresias-las", thresholds=(150.0,))
    promoted = run(jobs, 1, "tiresias-las", thresholds=(150.0,), promote=4.0)
    assert starved.finish[0] == starved.finish.max()
    assert promoted.finish[0] < 0.6 * starved.finish[0]


@given(seed=st.integers(0, 10_000), promote=st.sampled_from([1.0, 2.0, 4.0]))
@settings(max_examples=25, deadline=None)
def test_las_with_promotion_starves_nobody(seed, promote):
    """Long jobs on one device beside short ones that alone would fill it wait little longer than promotion takes."""
    rng = np.random.default_rng(seed)
    long = [job(n, 0, float(rng.integers(300, 600)), 1) for n in range(2)]
    short = [job(2 + n, 100.0 * n, 100, 1) for n in range(60)]
    promoted = run(long + short, 1, "tiresias-las", thresholds=(150.0,), promote=promote)
    starved = run(long + short, 1, "tiresias-las", thresholds=(150.0,))

    def longest_over(outcome):
        """By how much a wait of a long job goes beyond the promotion, the turn of the other and one short job."""
        over = []
        for row in range(2):
            runs = [(span.start, span.end) for span in outcome.series.spans if span.row == row]
            ran = 0.0
            for (start, end), (next_start, _) in itertools.pairwise(runs):
                ran += end - start
                over.append(next_start - end - (promote * max(ran, 1.0) + 400.0))
        return max(over)

    assert longest_over(promoted) <= 0
    assert longest_over(starved) > 0


def test_gittins_index_is_analytic():
    from training.policies.tiresias_gittins import gittins_index

    # One size: the nearer to its end, the higher, 1 / (D - a).
    assert gittins_index(np.array([10.0]), 4.0) == pytest.approx(1 / 6)
    # Sizes 1 or 10, as likely: at first the chance to end at 1 decides, (1/2) / 1; past it only 10 is left.
    both = np.array([1.0, 10.0])
    assert gittins_index(both, 0.0) == pytest.approx(0.5)
    assert gittins_index(both, 1.0) == pytest.approx(1 / 9)
    # Exponential sizes have no memory: the index stays the rate.
    samples = np.random.default_rng(0).exponential(100.0, 200_000)
    assert [gittins_index(samples, a) for a in (0.0, 50.0, 200.0)] == pytest.approx([0.01] * 3, rel=0.06)


def test_gittins_beats_las_where_the_index_rises_with_age():
    # All jobs take the same: the index rises, so that nobody is preempted; LAS shares among all.
    jobs = [job(n, 10 * n, 1000, 1) for n in range(12)]
    gittins = run(jobs, 2, "tiresias-gittins", samples=(1000.0,))
    las = run(jobs, 2, "tiresias-las", thresholds=tuple(float(t) for t in range(50, 1000, 50)))
    assert gittins.preemptions.sum() == 0
    assert gittins.jct.mean() < 0.8 * las.jct.mean()


@given(seed=st.integers(0, 10_000), policy=st.sampled_from(ORDERINGS), strict=st.booleans())
@settings(max_examples=60, deadline=None)
def test_laws_of_every_order(seed, policy, strict):
    jobs = random_jobs(seed, count=30)
    outcome = run(jobs, 8, policy, strict=strict)
    work = sum(j.duration * j.gpus for j in jobs)
    assert outcome.service.sum() == pytest.approx(work)
    assert np.allclose(outcome.run_s, outcome.work_s)
    assert outcome.summary()["utilization"] <= 1 + 1e-9


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_shortest_remaining_time_is_best_for_single_gpus_on_one(seed):
    jobs = [job(n, j.arrival, j.duration, 1) for n, j in enumerate(random_jobs(seed, count=25))]
    best = run(jobs, 1, "srtf").jct.mean()
    for policy in ("fcfs", "sjf", "tiresias-las", "fewest-gpus"):
        assert best <= run(jobs, 1, policy).jct.mean() + 1e-6


def test_a_policy_without_durations_cannot_see_them():
    class Curious:
        name = "curious"
        information = "none"
        round_s = 0.0

        def allocate(self, view):
            return view.remaining_s

    with pytest.raises(AssertionError, match="information class"):
        simulate(lecture_jobs(), Fleet.of(2), Curious())


def test_unknown_names_and_options_are_refused_in_one_line():
    from placement.errors import InputError

    with pytest.raises(InputError, match="'lifo' is not known; give one of penstock, fcfs"):
        policy_named("lifo")
    with pytest.raises(InputError, match="has no option 'colour'"):
        policy_named("fcfs", colour=1)
    assert all(policy_named(name).name == name for name in ENTRIES)
