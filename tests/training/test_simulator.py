"""What ends a simulation: every job's end, or one line that says which job never would; and the peers' own figures."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.cases import data_root
from benchmarks.training_cases import MIX480
from placement.errors import InputError
from tests.training.worlds import fleet, job, nodes, run
from training.fleet import Fleet
from training.job_files import read_jobs
from training.policies import policy_named
from training.simulator import simulate
from training.view import Allocation

OURS: dict[str, tuple[float, float]] = {"tiresias-las": (6913.4104, 114449.0)}
"""Where it is not what that simulator has (docs/training.md)."""
MIX480_CSV = data_root() / "cases" / "training" / "mix480.csv"


@pytest.mark.parametrize("policy", ["gavel", "sia", "pollux"])
def test_a_gang_that_fits_on_no_kind_alone_is_not_waited_for(policy):
    where = fleet(nodes(1, 2), nodes(1, 2, "t4", "t"))
    with pytest.raises(InputError, match=f"job 0: waits for ever; {policy} gives it nothing"):
        run([job(0, 0, 100, 3)], where, policy)
    assert run([job(0, 0, 100, 3)], where, "fcfs").finish.tolist() == [100]


class Patient:
    """Gives nobody anything before its time."""

    name, information, round_s = "patient", "none", 0.0

    def __init__(self, until):
        self.until = until

    def allocate(self, view):
        workers = np.zeros_like(view.workers)
        workers[:, 0] = view.gpus * (view.now >= self.until)
        return Allocation(workers, wake=view.now + 10)


def test_a_policy_may_take_its_time():
    assert simulate([job(0, 0, 100)], Fleet.of(1), Patient(500.0)).finish.tolist() == [600]
    with pytest.raises(InputError, match="job 0: waits for ever; patient"):
        simulate([job(0, 0, 100)], Fleet.of(1), Patient(np.inf))
    late = [job(0, 0, 100), job(1, 10_000, 100)]  # as long as somebody is still to come there is hope
    assert simulate(late, Fleet.of(2), Patient(5000.0)).finish[0] == 5100


def test_a_job_that_makes_no_progress_is_refused():
    where = fleet(nodes(1, 1), nodes(1, 1, "t4", "t"))
    jobs = [job(0, 0, 100, speeds={"v100": 0.0, "t4": 1.0})]
    with pytest.raises(InputError, match="job 0: makes no progress on what patient gives it"):
        simulate(jobs, where, Patient(0.0))


@pytest.mark.parametrize("part", ["memory", "cpus"])
def test_kinds_without_the_memory_or_cpus_are_no_choice(part):
    where = fleet(nodes(1, 4), nodes(1, 2, "t4", "t"), cpus={"v100": 4.0, "t4": 16.0})
    large = nodes(1, 2, "h100", "h")
    words = {"cpus": 8.0} if part == "cpus" else {"memory": 20 << 30}
    if part == "memory":
        large = [type(large[0])("h0", 2, 2 * large[0].memory, kind="h100")]
        where = fleet(nodes(1, 4), large)
    outcome = run([job(0, 0, 100, 1, **words)], where, "fcfs")
    assert outcome.time_on[0].tolist() == [0, 100]
    with pytest.raises(InputError, match="job 0: needs 3 workers; the cluster has 2 devices it can use"):
        run([job(0, 0, 100, 3, **words)], where, "fcfs")


def test_parts_of_devices_are_of_one_each():
    with pytest.raises(InputError, match="job 0: needs 3 workers; the cluster has 2 devices"):
        run([job(0, 0, 100, 3, share=0.5)], 2, "pai")
    assert run([job(0, 0, 100, 2, share=0.5)], 2, "pai").finish.tolist() == [100]


@pytest.mark.skipif(not MIX480_CSV.exists(), reason=f"no {MIX480_CSV}; set PENSTOCK_DATA")
@pytest.mark.parametrize("label", MIX480)
def test_mix480_comes_out_as_it_always_has(label):
    name, options, peer = MIX480[label]
    summary = simulate(read_jobs(MIX480_CSV), Fleet.of(64), policy_named(name, **options)).summary()
    mean, makespan = OURS.get(label, (peer[0], peer[3]))
    assert summary["mean_jct"] == pytest.approx(mean, abs=6e-4)
    assert summary["makespan"] == makespan
