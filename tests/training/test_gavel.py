"""Gavel: allocations are feasible and optimal, objectives do what they say, traces are read as they are."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from placement.errors import InputError
from tests.training.worlds import fleet, job, nodes, random_jobs, run
from training.gavel_trace import read_gavel
from training.policies import policy_named
from training.policies.gavel import OBJECTIVES, _weights, one_after_the_other
from training.shares import equal_share, most_for_least, most_total, soonest_fair, water_filled


def draw(seed, jobs=6, kinds=3):
    rng = np.random.default_rng(seed)
    speed = rng.uniform(0.1, 1.0, (jobs, kinds))
    return speed, rng.integers(1, 4, jobs), rng.integers(2, 6, kinds)


def feasible(x, gpus, capacity):
    assert (x > -1e-7).all()
    assert (x.sum(axis=1) <= 1 + 1e-6).all()
    assert ((x * gpus[:, None]).sum(axis=0) <= capacity + 1e-5).all()


@given(st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_max_min_is_feasible_and_as_good_as_its_dual(seed):
    speed, gpus, capacity = draw(seed)
    found = most_for_least(speed, gpus, capacity)
    feasible(found.x, gpus, capacity)
    assert (speed * found.x).sum(axis=1).min() == pytest.approx(found.value, rel=1e-4)
    assert found.value == pytest.approx(least_price(speed, gpus, capacity), rel=1e-4)


def least_price(speed, gpus, capacity):
    """The dual: weights u that sum to 1, prices y of devices and z of jobs with z_i + gpus_i y_j >= u_i speed_ij; the
    least sum z + capacity y is the greatest least."""
    jobs, kinds = speed.shape
    rows = []
    for i, j in np.ndindex(jobs, kinds):
        row = np.zeros(2 * jobs + kinds)
        row[i], row[jobs + j], row[jobs + kinds + i] = speed[i, j], -gpus[i], -1.0
        rows.append(row)
    cost = np.concatenate((np.zeros(jobs), capacity, np.ones(jobs)))
    weights = np.concatenate((np.ones(jobs), np.zeros(kinds + jobs)))[None, :]
    return linprog(cost, A_ub=np.array(rows), b_ub=np.zeros(len(rows)), A_eq=weights, b_eq=[1.0]).fun


def test_two_jobs_take_the_kinds_they_are_best_on():
    speed = np.array([[1.0, 0.1], [1.0, 0.9]])
    found = most_for_least(speed, np.array([1, 1]), np.array([1, 1]))
    assert found.x[0, 0] == pytest.approx(0.9)
    assert found.value == pytest.approx(0.91)


def test_total_throughput_and_water_filling():
    speed = np.array([[1.0, 0.5], [1.0, 0.2], [0.3, 0.1]])
    gpus, capacity = np.array([1, 1, 1]), np.array([1, 1])
    total = most_total(speed, gpus, capacity)
    assert total.value == pytest.approx(1.5)
    filled = water_filled(speed, gpus, capacity)
    feasible(filled.x, gpus, capacity)
    least = most_for_least(speed, gpus, capacity).value
    got = np.sort((speed * filled.x).sum(axis=1))
    assert got[0] == pytest.approx(least, rel=1e-3)


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_finish_time_fairness_is_at_most_that_of_equal_shares(seed):
    speed, gpus, capacity = draw(seed)
    rng = np.random.default_rng(seed)
    elapsed, work = rng.uniform(0, 100, 6), rng.uniform(10, 1000, 6)
    equal = (speed * equal_share(gpus, capacity)).sum(axis=1)
    alone = (work + 0.3 * elapsed) / equal
    found = soonest_fair(speed, gpus, capacity, elapsed, work, alone)
    feasible(found.x, gpus, capacity)
    assert found.value <= ((elapsed + work / equal) / alone).max() + 1e-6
    best = min(((elapsed + work / (speed * x).sum(axis=1)) / alone).max() for x in _others(speed, gpus, capacity, rng))
    assert found.value <= best * 1.01


def _others(speed, gpus, capacity, rng):
    """Other feasible shares."""
    for _ in range(200):
        x = rng.dirichlet(np.ones(speed.shape[1]), len(speed))
        over = (x * gpus[:, None]).sum(axis=0) / capacity
        yield np.maximum(x / max(1.0, over.max()), 1e-9)


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_makespan_is_at_most_that_of_other_shares(seed):
    speed, gpus, capacity = draw(seed)
    rng = np.random.default_rng(seed)
    work = rng.uniform(10, 1000, len(speed))
    found = most_for_least(speed / work[:, None], gpus, capacity)
    for x in _others(speed, gpus, capacity, rng):
        assert 1 / found.value <= (work / (speed * x).sum(axis=1)).max() * 1.001


def test_cost_takes_the_kind_that_does_most_for_its_price():
    where = fleet(nodes(1, 1), nodes(1, 1, "k80", "k"))
    jobs = [job(0, 0, 3600, 1, speeds={"v100": 1.0, "k80": 0.5}, mixed=False)]
    assert run(jobs, where, "gavel", objective="min-cost-perf", prices=(3.0, 1.0)).finish.tolist() == [7200]
    assert run(jobs, where, "gavel", objective="min-cost-perf", prices=(1.0, 1.0)).finish.tolist() == [3600]


def test_groups_share_equally_and_then_their_jobs():
    # Three jobs of one group and one of another on two devices: the one gets a device, the three a third each.
    speed, gpus, capacity = np.ones((4, 1)), np.ones(4, np.int64), np.array([2])
    weights = _weights(np.array([0, 0, 0, 1]))
    x = water_filled(speed / weights[:, None], gpus, capacity).x
    assert x[:, 0] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1], rel=1e-2)


def test_one_after_the_other_takes_the_fastest_kind_that_is_left():
    speed, gpus = np.array([[1.0, 0.5], [1.0, 0.2], [1.0, 0.9]]), np.array([1, 1, 1])
    x = one_after_the_other(speed, gpus, np.array([1, 1]), np.array([1, 0, 2]))
    assert x.tolist() == [[0, 1], [1, 0], [0, 0]]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_ends_every_job(objective):
    where = fleet(nodes(1, 4), nodes(1, 8, "k80", "k"))
    rng = np.random.default_rng(1)
    jobs = [
        job(
            n,
            j.arrival,
            j.duration,
            min(j.gpus, 4),
            speeds={"v100": 1.0, "k80": float(rng.uniform(0.2, 0.6))},
            mixed=False,
        )
        for n, j in enumerate(random_jobs(5, count=25))
    ]
    outcome = run(jobs, where, "gavel", objective=objective, round_s=60.0)
    assert np.isfinite(outcome.finish).all()


def test_knowing_the_kinds_is_worth_a_lot():
    where = fleet(nodes(1, 2), nodes(1, 2, "k80", "k"))
    speeds = ({"v100": 1.0, "k80": 0.1}, {"v100": 0.5, "k80": 1.0})
    jobs = [job(n, 0, 3600, 1, speeds=speeds[n % 2], kind=("v100", "k80")[n % 2], mixed=False) for n in range(4)]
    aware = run(jobs, where, "gavel")
    blind = run(jobs, where, "gavel", objective="max-min-fairness")
    assert aware.jct.mean() < 0.9 * blind.jct.mean()


def test_an_unknown_objective_is_refused():
    with pytest.raises(InputError, match="objective 'joy' is not known; give one of max-min"):
        policy_named("gavel", objective="joy")


def test_traces_are_read_as_they_are(tmp_path):
    table = {"v100": {"('A', 2)": {"null": 10.0}}, "k80": {"('A', 2)": {"null": 2.0}}, "v100_unconsolidated": {}}
    (tmp_path / "t.json").write_text(json.dumps(table))
    (tmp_path / "a.trace").write_text("A\tcmd\tdir\t-n\t1\t1000\t2\t1\t-1.000000\t30\n")
    (read,) = read_gavel(tmp_path / "a.trace", tmp_path / "t.json")
    assert (read.gpus, read.arrival, read.duration, read.kind) == (2, 30, 100, "v100")
    assert read.speeds == {"v100": 10.0, "k80": 2.0}
    (tmp_path / "b.trace").write_text("B\tcmd\tdir\t-n\t1\t1000\t2\t1\t-1\t30\n")
    with pytest.raises(InputError, match=r"line 1: .* has nothing for 'B'"):
        read_gavel(tmp_path / "b.trace", tmp_path / "t.json")
    (tmp_path / "b.trace").write_text(f"A\tcmd\tdir\t-n\t1\t1{'0' * 400}\t2\t1\t-1\t30\n")
    with pytest.raises(InputError, match="line 1: "):
        read_gavel(tmp_path / "b.trace", tmp_path / "t.json")
    (tmp_path / "c.trace").write_text("B\tcmd\n")
    with pytest.raises(InputError, match="2 cells"):
        read_gavel(tmp_path / "c.trace", tmp_path / "t.json")
