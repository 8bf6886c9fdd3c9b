"""Pollux and Sia: the model of algorithms.md, fitting it, the noise scale, and allocations near the best."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from placement.errors import InputError
from tests.training.worlds import fleet, job, nodes, random_jobs, run
from training.goodput import best_goodput, efficiency, iteration_time, learning_rate_scale, sync_time, tune
from training.jobs import Amdahl, Batch, Pollux
from training.policies.sia import choose
from training.pollux_fit import Observations, fit, noise_scale
from training.pollux_trace import read_pollux
from training.simulator import World

MODEL = Pollux(0.1, 0.01, 0.05, 0.005, 0.2, 0.02, gamma=2.0, noise_scale=1000.0)


def test_the_model_is_that_of_the_paper():
    assert sync_time(MODEL, 1, 1) == 0
    assert sync_time(MODEL, 4, 1) == pytest.approx(0.05 + 0.005 * 2)
    assert sync_time(MODEL, 4, 2) == pytest.approx(0.2 + 0.02 * 2)
    grad, sync = 0.1 + 0.01 * 8, 0.06
    assert iteration_time(MODEL, 4, 1, 8, 2) == pytest.approx(2 * grad + (grad**2 + sync**2) ** 0.5)
    assert efficiency(1000, 128, 128) == 1
    assert efficiency(1000, 128, 1128) == pytest.approx(1128 / 2128)


def test_no_overlap_adds_and_perfect_overlap_hides():
    none = Pollux(0.1, 0.0, 0.3, 0.0, 0.3, 0.0, gamma=1.0, noise_scale=0.0)
    most = Pollux(0.1, 0.0, 0.3, 0.0, 0.3, 0.0, gamma=10.0, noise_scale=0.0)
    assert iteration_time(none, 2, 1, 1, 0) == pytest.approx(0.4)
    assert iteration_time(most, 2, 1, 1, 0) == pytest.approx(0.3, rel=1e-3)


def test_the_batch_that_serves_best_grows_with_the_noise():
    batch = Batch(start=128, largest=8192, device_largest=512)
    quiet, noisy = (tune(MODEL, batch, np.array([8]), np.array([2]), noise_scale=phi) for phi in (10.0, 1e5))
    assert quiet.batch[0] < noisy.batch[0]
    assert noisy.device_batch[0] <= 512 * 1.001
    rates = best_goodput(MODEL, batch, np.arange(1, 17), np.ceil(np.arange(1, 17) / 4))
    assert (np.diff(rates[[0, 1, 3, 7, 15]]) > 0).all()


def test_learning_rates():
    assert learning_rate_scale(512, 128, 0.0) == 1
    assert learning_rate_scale(512, 128, 1e12) == pytest.approx(4, rel=1e-3)
    assert learning_rate_scale(512, 128, 0.0, "sqrt") == 2


def test_fitting_recovers_the_times():
    rng = np.random.default_rng(0)
    replicas = np.array([1, 1, 2, 4, 4, 8, 8, 16.0, 12])
    where = np.array([1, 1, 1, 1, 1, 2, 2, 4.0, 3])
    samples = np.array([8, 64, 32, 16, 64, 32, 64, 32.0, 8])
    step = np.asarray(iteration_time(MODEL, replicas, where, samples, 0))
    compute = 0.1 + 0.01 * samples
    noisy = step * np.exp(rng.normal(0, 0.01, len(step)))
    found = fit(Observations(where, replicas, samples, noisy, compute))
    again = iteration_time(found, replicas, where, samples, 0)
    assert np.abs(again / step - 1).max() < 0.06
    unseen = float(iteration_time(found, 6, 2, 48, 0)) / float(iteration_time(MODEL, 6, 2, 48, 0))
    assert unseen == pytest.approx(1, abs=0.1)


def test_what_was_never_tried_counts_as_free():
    found = fit(Observations(*(np.array(v, float) for v in ([1, 1], [1, 1], [8, 64], [0.18, 0.74], [0.18, 0.74]))))
    assert float(sync_time(found, 4, 2)) == 0


def test_the_noise_scale_of_real_gradients():
    # Gradients with mean g and independent noise: trace of the covariance over |g|^2 is known.
    rng = np.random.default_rng(1)
    mean, deviation, size = 0.1, 2.0, 50
    true = size * deviation**2 / (size * mean**2)

    def squared_norms(batch, draws=4000):
        gradients = mean + deviation / np.sqrt(batch) * rng.standard_normal((draws, size))
        return (gradients**2).sum(axis=1)

    assert noise_scale(squared_norms(16), squared_norms(1024), 16, 1024) == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("power", [-1.0, 1.0])
def test_the_allocation_is_close_to_the_best_of_all(power):
    from training.kernels import climb_speedups

    rng = np.random.default_rng(3)
    for _ in range(10):
        serial = rng.uniform(0.0, 0.5, 4)
        counts = np.arange(9)
        gain = np.maximum(counts / (1 + serial[:, None] * np.maximum(counts - 1, 0)), 1e-3)
        value = np.sign(power) * gain**power
        found = np.zeros(4, np.int64)
        climb_speedups(value, np.ones(4, np.int64), np.full(4, 8), 8, found)
        assert found.sum() <= 8
        ours = value[np.arange(4), found].sum()
        best = max(
            sum(value[j, c] for j, c in enumerate(pick))
            for pick in itertools.product(range(9), repeat=4)
            if sum(pick) <= 8
        )
        assert ours >= best - 0.02 * abs(best)


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_everybody_ends_and_scaling_jobs_get_more(policy):
    jobs = [
        job(0, 0, 3000, 1, min_gpus=1, max_gpus=8, curve=Amdahl(serial=0.0)),
        job(1, 0, 3000, 1, min_gpus=1, max_gpus=8, curve=Amdahl(serial=0.9)),
    ]
    outcome = run(jobs, fleet(nodes(1, 8)), policy)
    assert outcome.finish[0] < outcome.finish[1]
    assert outcome.service[0] > outcome.service[1] or outcome.finish[0] < 1000


def test_sia_puts_jobs_on_the_kind_they_gain_most_from():
    where = fleet(nodes(1, 2), nodes(1, 2, "t4", "t"))
    jobs = [
        job(0, 0, 600, 2, speeds={"v100": 1.0, "t4": 0.2}, mixed=False),
        job(1, 0, 600, 2, speeds={"v100": 1.0, "t4": 0.9}, mixed=False),
    ]
    outcome = run(jobs, where, "sia")
    assert outcome.finish[0] == 600
    assert outcome.time_on[1, 1] > 0


def test_pollux_looks_at_the_kinds():
    where = fleet(nodes(1, 2), nodes(1, 4, "t4", "t"))
    jobs = [
        job(0, 0, 600, 1, speeds={"v100": 1.0, "t4": 0.0}),  # the more numerous kind does nothing for it
        job(1, 0, 600, 1, speeds={"v100": 0.0, "t4": 1.0}),
        job(2, 0, 600, 1, speeds={"v100": 1.0, "t4": 0.1}),
    ]
    outcome = run(jobs, where, "pollux")
    assert outcome.finish.tolist() == [600, 600, 600]
    assert (outcome.time_on > 0).tolist() == [[True, False], [False, True], [True, False]]


def test_pollux_lets_nobody_wait_while_another_kind_idles():
    where = fleet(nodes(1, 4), nodes(1, 4, "t4", "t"), speeds={"v100": 1.0, "t4": 0.4})
    outcome = run([job(n, 0, 600, 3) for n in range(2)], where, "pollux")
    assert outcome.first_start.tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(6))
def test_sia_chooses_as_well_as_trying_everything(seed):
    rng = np.random.default_rng(seed)
    capacity = rng.integers(2, 5, 2)
    rows = [(j, k, c) for j in range(4) for k in range(2) for c in (1, 2, 4) if c <= capacity[k]]
    job_of, kind, count = np.array(rows).T
    value = rng.uniform(0.5, 3.0, len(rows))
    found = choose(job_of, kind, count, value, capacity, 4, 5.0)
    assert len(set(job_of[found].tolist())) == len(found)
    assert (np.bincount(kind[found], count[found], 2) <= capacity).all()
    best = 0.0
    ways = [[None, *np.flatnonzero(job_of == j).tolist()] for j in range(4)]
    for pick in itertools.product(*ways):
        taken = [row for row in pick if row is not None]
        if (np.bincount(kind[taken], count[taken], 2) <= capacity).all():
            best = max(best, value[taken].sum())
    assert value[found].sum() == pytest.approx(best, rel=1e-3)


def test_pollux_restarts_less_when_jobs_are_young():
    outcome = run(random_jobs(4, count=30, elastic=1.0), 16, "pollux")
    assert np.isfinite(outcome.finish).all()


def write_profile(folder):
    """An application whose iterations take 0.1 s + 0.01 s a sample, and a tenth more for each further replica."""
    folder.mkdir(parents=True)
    rows, more = ["placement,local_bsz,step_time,sync_time"], ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for placement in ("1", "2", "3", "4", "44"):
        for samples in (8, 16, 32, 64):
            step, sync = 0.1 + 0.01 * samples, 0.01 * (sum(map(int, placement)) - 1)
            rows.append(f"{placement},{samples},{step + sync},{sync}")
    more += [f"4,16,{samples},{0.1 + 0.01 * samples + 0.2},0.2" for samples in (8, 64)]
    (folder / "placements.csv").write_text("\n".join(rows) + "\n")
    (folder / "scalability.csv").write_text("\n".join(more) + "\n")
    for batch in (32, 512):
        lines = ["progress,iteration,metric,grad_sqr,grad_var"]
        lines += [f"{5000 * (epoch + 1)},{epoch},0,1.0,{10.0 * (epoch + 1)}" for epoch in range(5)]
        (folder / f"validation-{batch}.csv").write_text("\n".join(lines) + "\n")


def test_a_workload_and_its_profiles_are_read_as_they_are(tmp_path):
    write_profile(tmp_path / "profiles" / "toy")
    text = "name,time,application,num_replicas,batch_size\n" + "".join(f"toy-{n},{30 * n},toy,2,64\n" for n in range(5))
    (tmp_path / "w.csv").write_text(text)
    where = fleet(nodes(2, 4))
    finished = {}
    for policy, tuned in (("fcfs", False), ("pollux", True)):
        jobs, speeds = read_pollux(tmp_path / "w.csv", tmp_path / "profiles", tuned, elastic=tuned)
        outcome = run(jobs, World(where, speeds=speeds), policy)
        finished[policy] = outcome
    # Alone with what it asked for, a job takes what its epochs take.
    assert finished["fcfs"].jct[0] == pytest.approx(jobs[0].duration, rel=1e-6)
    assert finished["pollux"].jct.mean() < finished["fcfs"].jct.mean()
    for cells in ("0,64", "-1,64", "1000000,64", "1,0", "1,nan", "1,inf", "1,x"):
        (tmp_path / "bad.csv").write_text(f"name,time,application,num_replicas,batch_size\nx,0,toy,{cells}\n")
        with pytest.raises(InputError, match=r"bad\.csv: line 2: "):
            read_pollux(tmp_path / "bad.csv", tmp_path / "profiles", True)
    (tmp_path / "bad.csv").write_text("name,time,application,num_replicas,batch_size\nx,0,none,1,32\n")
    with pytest.raises(InputError, match="no profile of 'none'"):
        read_pollux(tmp_path / "bad.csv", tmp_path / "profiles", True)
