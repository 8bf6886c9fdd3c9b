"""Small queues for the tests: jobs from short rows, fleets from counts, and a checker of any outcome."""

from __future__ import annotations

import numpy as np

from placement.cluster import Cluster, Node
from placement.units import Bytes
from training.fleet import Fleet
from training.jobs import Job
from training.outcome import Outcome
from training.policies import policy_named
from training.simulator import World, simulate

LECTURE = [(30, 0, 3), (10, 0, 1), (25, 1, 2), (40, 4, 4)]
"""Duration, arrival, priority of one-GPU jobs."""


def job(number: int, arrival: float, duration: float, gpus: int = 1, **fields: object) -> Job:
    return Job(id=str(number), arrival=arrival, duration=duration, gpus=gpus, **fields)


def lecture_jobs() -> list[Job]:
    return [job(n, arrival, duration, priority=priority) for n, (duration, arrival, priority) in enumerate(LECTURE)]


def random_jobs(seed: int, count: int = 60, largest: int = 8, elastic: float = 0.0) -> list[Job]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(60.0, count)).round()
    jobs = []
    for n in range(count):
        gpus = int(min(largest, 2 ** rng.integers(0, 4)))
        fields = {"min_gpus": max(1, gpus // 2), "max_gpus": 2 * gpus} if rng.random() < elastic else {}
        jobs.append(job(n, arrivals[n], float(np.ceil(rng.lognormal(5.0, 1.5))), gpus, **fields))
    return jobs


def nodes(count: int, devices: int = 8, kind: str = "v100", prefix: str = "n") -> list[Node]:
    return [Node(f"{prefix}{n}", devices, Bytes(16 << 30), kind=kind) for n in range(count)]


def fleet(*parts: list[Node], **fields: object) -> Fleet:
    return Fleet(Cluster(tuple(node for part in parts for node in part)), **fields)


def run(jobs: list[Job], where: World | Fleet | int, policy: str, **options: object) -> Outcome:
    where = Fleet.of(where) if isinstance(where, int) else where
    outcome = simulate(jobs, where, policy_named(policy, **options))
    check(jobs, where.fleet if isinstance(where, World) else where, outcome)
    return outcome


def check(jobs: list[Job], where: Fleet, outcome: Outcome) -> None:
    """Every job ends once, after it arrived and no sooner than it can; devices are never given twice."""
    assert (outcome.finish >= outcome.submit).all()
    assert (outcome.first_start >= outcome.submit).all()
    assert (outcome.queue > -1e-6).all()
    edges = sorted(
        [(span.start, span.workers) for span in outcome.series.spans]
        + [(span.end, -span.workers) for span in outcome.series.spans]
    )
    held, capacity = 0, int(where.capacity.sum())
    for _, change in edges:
        held += change
        if outcome.policy not in ("gandiva", "antman", "pai"):  # these share devices
            assert held <= capacity
    assert held == 0
    ran = {span.row for span in outcome.series.spans}
    assert ran == set(range(len(jobs)))
