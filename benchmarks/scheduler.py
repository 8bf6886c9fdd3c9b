"""How long scheduling takes: a 15-day co-simulation, one decision of each policy, Gavel's programs, Pollux' search.

    python -m benchmarks.scheduler [--tiny]

CPU seconds, compiled code warm. The co-simulation needs $PENSTOCK_DATA's lyra15d case and is skipped without it. Prints
one JSON line; `slowest_s` is the slowest decision with 10,000 jobs and 10,000 GPUs of the policies that order or grow.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import data_root, emit, note
from placement.cluster import Cluster, Node
from placement.units import Bytes, Seconds
from training.arrays import Floats, Ints
from training.fleet import DEVICE_MEMORY, Fleet
from training.jobs import Amdahl, Job
from training.mechanism import Mechanism
from training.policies import ENTRIES, policy_named
from training.policies.pollux import best_counts, fitness, speedups
from training.shares import equal_share, most_for_least, soonest_fair
from training.table import Table
from training.view import View

QUICK = (
    *("fcfs", "sjf", "srtf", "srsf", "priority", "fewest-gpus", "tiresias-las", "tiresias-gittins", "themis", "pai"),
    *("optimus", "gandiva", "lyra", "penstock"),
)
SIZE, LIMIT_S = 10_000, 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes: a check that it runs")
    parser.add_argument("--skip-simulation", action="store_true", help="leave the co-simulation out")
    arguments = parser.parse_args()
    tiny = arguments.tiny
    size = 200 if tiny else SIZE
    quick = {name: noted(name, round(decision_s(name, size), 4)) for name in QUICK}
    others = [name for name in ENTRIES if name not in QUICK]
    reached = {name: noted(name, largest(name, 64 if tiny else SIZE)) for name in others}
    emit(
        {
            "benchmark": "scheduler",
            "slowest_s": max(quick.values()),
            "decision_s": quick,
            "reached_in_10_s": reached,
            "gavel": noted("gavel", gavel_s(64 if tiny else 2048, 64 if tiny else SIZE)),
            "pollux": noted("pollux", pollux_s(*((32, 64) if tiny else (640, 512)))),
            "co_simulation": None if arguments.skip_simulation else co_simulation(tiny),
        }
    )


def waiting_view(name: str, size: int) -> tuple[Mechanism, float]:
    """As many jobs as devices in all: half have come and were served, then the other half comes."""
    rng = np.random.default_rng(0)
    fleet = Fleet(Cluster(tuple(Node(f"n{n}", 8, Bytes(DEVICE_MEMORY)) for n in range(-(-size // 8)))))
    jobs = []
    for n in range(size):
        gpus = int(rng.choice([1, 2, 4, 8], p=[0.5, 0.2, 0.15, 0.15]))
        wide: dict[str, Any] = {"min_gpus": max(1, gpus // 2), "max_gpus": 2 * gpus} if rng.random() < 0.3 else {}
        length = Seconds(float(rng.lognormal(7, 1.5)))
        due: dict[str, Any] = {"deadline": Seconds(600.0 + 4 * length)} if n % 4 == 0 else {}
        jobs.append(Job(id=str(n), gpus=gpus, duration=length, priority=float(n % 5), **due, **wide))
    table = Table(jobs, fleet)
    table.estimate[:] = [job.work_s for job in jobs]
    mechanism = Mechanism(table, fleet, policy_named(name))
    mechanism.submit(np.arange(size // 2))
    # Whoever would schedule them, first come is served first.
    mechanism.policy = policy_named("fcfs")
    mechanism.decide(0.0)
    mechanism.policy = policy_named(name)
    mechanism.submit(np.arange(size // 2, size))
    return mechanism, 600.0


def decision_s(name: str, size: int) -> float:
    """CPU seconds of one decision, the second of two."""
    mechanism, now = waiting_view(name, size)
    decide(mechanism, now)
    return decide(mechanism, now)


def decide(mechanism: Mechanism, now: float) -> float:
    began = time.process_time()
    mechanism.policy.allocate(mechanism.view(now))
    return time.process_time() - began


def largest(name: str, most: int) -> dict[str, Any]:
    """The largest number of jobs and devices, doubling, with a decision within 10 s."""
    size, best = 64, {"jobs": 0, "s": 0.0}
    while size <= most:
        mechanism, now = waiting_view(name, size)
        took = decide(mechanism, now)
        if took > LIMIT_S:
            break
        best = {"jobs": size, "s": round(took, 3)}
        if size == most:
            break
        size = min(2 * size, most)
    return best


def gavel_s(fair: int, least: int) -> dict[str, float]:
    """Finish-time fairness and max-min fairness as Gavel's own benchmark asks them: three kinds, random throughputs."""
    return {
        f"finish-time-fairness {fair} jobs": timed(lambda: _soonest(fair)),
        f"max-min {least} jobs": timed(lambda: _least(least)),
    }


def _draw(jobs: int) -> tuple[Floats, Ints, Ints]:
    rng = np.random.default_rng(0)
    profiles = rng.uniform(0.1, 1.0, (26, 3))[rng.integers(26, size=jobs)]
    return profiles, rng.choice([1, 2, 4], jobs), np.full(3, max(4, jobs // 4))


def _soonest(jobs: int) -> None:
    speed, gpus, capacity = _draw(jobs)
    rng = np.random.default_rng(1)
    elapsed, work = rng.uniform(0, 1e4, jobs), rng.lognormal(8, 1.5, jobs)
    alone = (work + 0.3 * elapsed) / (speed * equal_share(gpus, capacity)).sum(axis=1)
    soonest_fair(speed, gpus, capacity, elapsed, work, alone)


def _least(jobs: int) -> None:
    speed, gpus, capacity = _draw(jobs)
    most_for_least(speed / (speed * equal_share(gpus, capacity)).sum(axis=1)[:, None], gpus, capacity)


def pollux_s(jobs: int, gpus: int) -> dict[str, float]:
    """Its allocation, and the fitness beside that of a genetic search over the same speedups."""
    view = pollux_view(jobs, gpus)
    gain = speedups(view)
    found = best_counts(gain, view, gpus, -1.0)
    took = timed(lambda: best_counts(speedups(view), view, gpus, -1.0))
    bred = genetic(gain, view.fewest, gpus, generations=100)
    return {"s": took, "fitness": fitness(gain, found, -1.0), "genetic_fitness": fitness(gain, bred, -1.0)}


def pollux_view(jobs: int, gpus: int) -> View:
    rng = np.random.default_rng(0)
    fleet = Fleet(Cluster(tuple(Node(f"n{n}", 4, Bytes(DEVICE_MEMORY)) for n in range(gpus // 4))))
    table = Table(
        [
            Job(
                id=str(n),
                gpus=1,
                min_gpus=1,
                max_gpus=int(rng.choice([4, 8, 16, 32])),
                curve=Amdahl(serial=float(rng.uniform(0.01, 0.5))),
            )
            for n in range(jobs)
        ],
        fleet,
    )
    mechanism = Mechanism(table, fleet, policy_named("pollux"))
    mechanism.submit(np.arange(jobs))
    table.tried[:] = table.most
    return mechanism.view(600.0)


def genetic(gain: Floats, fewest: Ints, gpus: int, generations: int, population: int = 100) -> Ints:
    """Tournaments, crossover job by job, mutation, and repair to the devices there are; the best ever is kept."""
    rng = np.random.default_rng(0)
    jobs, most = gain.shape[0], gain.shape[1] - 1
    rows = np.arange(jobs)
    first = rng.integers(0, 3, (population, jobs))
    people = np.array([_repaired(rng, counts, fewest, gpus) for counts in first])

    def score(counts: Ints) -> Floats:
        return -np.asarray((1.0 / gain[rows, counts]).sum(axis=1), np.float64)

    for _ in range(generations):
        worth = score(people)
        pairs = rng.integers(population, size=(2 * population, 2))
        parents = np.where(worth[pairs[:, 0]] >= worth[pairs[:, 1]], pairs[:, 0], pairs[:, 1])
        mix = rng.random((population, jobs)) < 0.5
        children = np.where(mix, people[parents[:population]], people[parents[population:]])
        change = rng.random(children.shape) < 2.0 / jobs
        children = np.where(change, rng.integers(0, most + 1, children.shape), children)
        children = np.array([_repaired(rng, counts, fewest, gpus) for counts in children])
        everyone = np.concatenate((people, children))
        people = everyone[np.argsort(-score(everyone), kind="stable")[:population]]
    best: Ints = people[0]
    return best


def _repaired(rng: np.random.Generator, counts: Any, fewest: Ints, gpus: int) -> Ints:
    """Workers taken from jobs at random until the rest fits."""
    counts = np.array(counts, np.int64)
    while (over := int(counts.sum()) - gpus) > 0:
        held = np.flatnonzero(counts)
        for job in rng.permutation(held)[:over]:
            counts[job] -= 1
    counts[counts < fewest] = 0
    repaired: Ints = counts
    return repaired


def co_simulation(tiny: bool) -> dict[str, Any] | None:
    """50,000 jobs over 15 days with loans, under lyra."""
    from benchmarks.training_lyra import lyra_jobs, measured

    if not (data_root() / "cases" / "training" / "lyra15d").exists():
        return None
    jobs = lyra_jobs()[: 1000 if tiny else None]
    return {"jobs": len(jobs), "cpu_s": measured(jobs, "lyra", loans=True)["cpu_s"]}


def timed(call: Callable[[], object]) -> float:
    """CPU seconds of the second call."""
    call()
    began = time.process_time()
    call()
    return round(time.process_time() - began, 3)


def noted(name: str, value: Any) -> Any:
    note(f"{name}: {value}")
    return value


if __name__ == "__main__":
    main()
