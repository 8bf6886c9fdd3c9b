"""PAI: parts of GPUs are shared, V100s kept for those that need them, CPUs count; and what the paper found, small."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import InputError
from tests.training.worlds import fleet, job, nodes, run
from training.ledger import Ledger
from training.pai_load import PaiLoad, pai_fleet, pai_jobs
from training.policies import policy_named
from training.prediction import predict
from training.simulator import simulate

TWO_KINDS = {"v100": 1.0, "t4": 0.5}
ANY = {"v100": 1.0, "t4": 0.9}
EAGER = {"v100": 1.0, "t4": 0.3}


def two_kinds(**fields):
    return fleet(nodes(1, 1, "t4", "t"), nodes(1, 1), speeds=TWO_KINDS, **fields)


def test_parts_of_a_gpu_are_shared_and_slow_each_other_a_little():
    jobs = [job(n, 0, 100, 1, share=0.5) for n in range(2)]
    shared, whole = run(jobs, 1, "pai"), run(jobs, 1, "pai", shares=False)
    assert shared.queue.tolist() == [0, 0]
    assert shared.finish.tolist() == pytest.approx([114, 114])  # 1 + 0.28 x the neighbour's half
    assert whole.finish.tolist() == [100, 200]


def test_memory_is_guaranteed():
    jobs = [job(n, 0, 100, 1, share=0.1, memory=9 << 30) for n in range(2)]
    assert run(jobs, fleet(nodes(1, 1)), "pai").finish.tolist() == [100, 200]


def test_v100s_are_kept_for_those_that_need_them():
    jobs = [
        job(0, 0, 90, 1, speeds=ANY, kind="v100", mixed=False),
        job(1, 1, 50, 1, speeds={"v100": 1.0}, mixed=False),
        job(2, 60, 50, 1, speeds=EAGER, kind="v100", mixed=False),
    ]
    # The first packs onto the weak GPU though both are idle; the third is high-GPU and finds the V100 free.
    kept = run(jobs, two_kinds(), "pai")
    assert kept.time_on[0].tolist() == pytest.approx([100, 0])
    assert kept.finish.tolist() == pytest.approx([100, 51, 110])


def test_a_high_gpu_job_takes_a_weak_gpu_rather_than_none():
    jobs = [job(n, n, 60, 1, speeds=EAGER, kind="v100", mixed=False) for n in range(2)]
    outcome = run(jobs, two_kinds(), "pai")
    assert outcome.queue.tolist() == [0, 0]
    assert outcome.time_on[1].tolist() == pytest.approx([200, 0])


def test_cpus_run_out_before_gpus():
    where = fleet(nodes(1, 8), cpus={"v100": 12.0})
    jobs = [job(n, 0, 100, 1, cpus=6.0) for n in range(3)]
    assert sorted(run(jobs, where, "pai").finish.tolist()) == [100, 100, 200]
    with pytest.raises(InputError, match="job 0: needs 13 CPUs a worker; no node"):
        run([job(0, 0, 1, 1, cpus=13.0)], where, "pai")


def test_the_least_loaded_node_is_next_and_a_gang_stays_together():
    where = fleet(nodes(3, 4))
    jobs = [job(n, n, 100, gpus, spread_speed=0.5) for n, gpus in enumerate((1, 3, 4, 4))]
    # The second takes an idle node, not the rest of the first's; the last then finds no node for itself alone.
    assert run(jobs, where, "pai").finish.tolist() == [100, 101, 102, 203]


def test_the_shortest_by_prediction_goes_first_and_nobody_is_preempted():
    jobs = [job(0, 0, 50, 1), job(1, 1, 40, 1), job(2, 2, 10, 1)]
    outcome = run(jobs, 1, "pai")
    assert outcome.first_start.tolist() == [0, 60, 50]
    wrong = simulate(jobs, fleet(nodes(1, 1)), policy_named("pai"), np.array([50.0, 5.0, 10.0]))
    assert wrong.first_start.tolist() == [0, 50, 90]
    assert run(jobs, 1, "pai", shortest_first=False).first_start.tolist() == [0, 50, 90]


@given(seed=st.integers(0, 10_000), shares=st.booleans(), reserves=st.booleans())
@settings(max_examples=20, deadline=None)
def test_nothing_is_given_twice(seed, shares, reserves, monkeypatch_take):
    rng = np.random.default_rng(seed)
    where = fleet(nodes(2, 2, "t4", "t"), nodes(2, 4), speeds=TWO_KINDS, cpus={"t4": 32.0, "v100": 24.0})
    jobs = [
        job(
            n,
            float(rng.integers(0, 400)),
            float(rng.integers(10, 200)),
            int(rng.choice([1, 2, 4])),
            share=float(rng.choice([0.1, 0.25, 0.5, 1.0])),
            cpus=float(rng.choice([2, 4, 6])),
            memory=int(rng.integers(1, 8)) << 30,
            speeds=[ANY, EAGER, {"v100": 1.0}][rng.integers(3)],
            kind="v100",
            mixed=False,
        )
        for n in range(40)
    ]
    outcome = run(sorted(jobs, key=lambda each: each.arrival), where, "pai", shares=shares, reserves=reserves)
    assert np.isfinite(outcome.finish).all()
    assert outcome.preemptions.sum() == 0


@pytest.fixture(scope="module")
def monkeypatch_take():
    """Look into every device and node after each taking."""
    take = Ledger.take

    def checked(self, *arguments, **options):
        take(self, *arguments, **options)
        assert (self.free_memory >= -1).all()
        assert (self.node_cpus >= -1e-6).all()

    Ledger.take = checked
    yield
    Ledger.take = take


def test_the_preset_is_the_published_cluster():
    preset = pai_fleet()
    assert preset.capacity.sum() == 6742
    assert dict(zip(preset.kinds, preset.capacity.tolist(), strict=True))["v100-32gb"] == 1080


def test_the_load_is_like_the_published_one():
    jobs = pai_jobs(PaiLoad(days=2, scale=0.2))
    workers, share, cpus = (np.array([getattr(j, name) for j in jobs]) for name in ("gpus", "share", "cpus"))
    assert workers[workers > 1].sum() / workers.sum() == pytest.approx(0.85, abs=0.03)
    runs = Counter(j.tag for j in jobs)
    assert np.mean([runs[j.tag] >= 5 for j in jobs]) == pytest.approx(0.65, abs=0.05)
    each = np.repeat(share, workers), np.repeat(cpus, workers)
    assert [np.percentile(column, 95) for column in each] == [1.0, 12.0]
    assert 0.1 < (each[0] == 1).mean() < 0.2  # somewhat fewer than the fifth that the paper has
    assert each[1].sum() / each[0].sum() == pytest.approx(22.8, rel=0.15)


@pytest.mark.long
def test_what_the_paper_found_holds_on_a_tenth_of_the_cluster():
    jobs = pai_jobs(PaiLoad(days=4, scale=0.1))
    past, now = [j for j in jobs if j.arrival < 86400], [j for j in jobs if j.arrival >= 86400]
    estimates = predict(past, now)
    parts = {"fifo": (), "sjf": ("shortest_first",), "shared": ("shares",), "kept": ("shares", "reserves")}
    found = {}
    for label, on in parts.items():
        options = {name: name in on for name in ("shortest_first", "shares", "reserves")}
        found[label] = simulate(now, pai_fleet(0.1), policy_named("pai", round_s=10.0, **options), estimates)
    needs_v100 = np.array([len(j.speeds) == 2 for j in now])
    assert found["sjf"].jct.mean() <= 0.5 * found["fifo"].jct.mean()
    assert np.percentile(found["shared"].queue, 90) <= 0.5 * np.percentile(found["fifo"].queue, 90)
    assert found["kept"].queue[needs_v100].mean() <= 0.5 * found["shared"].queue[needs_v100].mean()
