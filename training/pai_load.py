"""The PAI cluster as a preset, and a load like the one its paper reports (NSDI '22), drawn with a seed.

85% of instances are gang-scheduled, two thirds of the tasks recur, requests are heavy-tailed, CPUs are asked for more
than 8-GPU nodes have. A task is one job here, its instances the workers. What is not published is ours: how wide gangs
are, how alike the runs of a recurring task (8%, and one in fifty breaks off early), who needs a V100.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placement.cluster import Cluster, Node
from placement.units import Bytes, Seconds, Share
from training.arrays import Floats, Ints
from training.fleet import Fleet
from training.jobs import Job

GIB = 2**30
DAY_S = 86400.0


class Part(NamedTuple):
    """Nodes of one kind."""

    kind: str
    nodes: int
    devices: int
    cpus: int
    memory_gib: int
    speed: float


PARTS = (
    Part("p100", 798, 2, 64, 16, 0.5),
    Part("t4", 497, 2, 96, 16, 0.4),
    Part("misc", 280, 8, 96, 16, 0.5),
    Part("v100-32gb", 135, 8, 96, 32, 1.0),
    Part("v100", 104, 8, 96, 16, 1.0),
)
V100 = ("v100-32gb", "v100")


def pai_fleet(scale: float = 1.0) -> Fleet:
    """798 x 2 P100, 497 x 2 T4, 280 x 8 others, 135 x 8 V100 with 32 GB and 104 x 8 V100: 6,742 GPUs; or a part."""
    nodes = [
        Node(f"{part.kind}-{n}", part.devices, Bytes(part.memory_gib * GIB), kind=part.kind)
        for part in PARTS
        for n in range(max(1, round(part.nodes * scale)))
    ]
    speeds = {part.kind: part.speed for part in PARTS}
    return Fleet(Cluster(tuple(nodes)), speeds, {part.kind: float(part.cpus) for part in PARTS})


@dataclass(frozen=True)
class PaiLoad:
    """Chances are of tasks, not of instances."""

    days: float = 3.0
    load: float = 1.85
    """Devices the tasks would hold on average if each instance had a whole one, against those there are."""
    scale: float = 1.0
    """Of the cluster it is for."""
    recurring: float = 0.67
    breaks_off: float = 0.02
    run_sigma: float = 0.08
    """Of the runs of one recurring task about its own length."""
    median_s: float = 1700.0
    sigma: float = 2.0
    longest_s: float = 2 * DAY_S
    day_swing: float = 0.35
    seed: int = 0


class _Tasks(NamedTuple):
    """What a task asks for each time it runs, columns [tasks]"""

    user: Ints
    model: Ints
    need: Ints
    """0: any kind; 1: any, but far faster on a V100; 2: a V100."""
    workers: Ints
    share: Floats
    cpus: Floats
    memory_gib: Floats
    length_s: Floats


USERS, MODELS, RECURRING = 300, 12, 1200
NEEDS = (0.82, 0.02, 0.16)
WIDTHS = {1: 0.72, 4: 0.05, 8: 0.08, 16: 0.08, 32: 0.07}
V100_WIDTHS = {1: 0.6, 2: 0.1, 4: 0.1, 8: 0.12, 16: 0.08}
V100_LONGER = 0.7
SHARES = {0.1: 0.25, 0.25: 0.4, 0.5: 0.35}
OWN = 0.015
"""Of the variance of lengths: what a task does not share with others of its user and model."""
CPUS = {4.0: 0.1, 8.0: 0.3, 10.0: 0.25, 12.0: 0.35}
MOST_TASKS = 400_000


def pai_jobs(load: PaiLoad) -> list[Job]:
    """The jobs of so many days, in order of arrival; the first hours fill the cluster."""
    rng = np.random.default_rng(load.seed)
    pool = _tasks(rng, max(30, round(RECURRING * load.scale)), load)
    fresh = _tasks(rng, MOST_TASKS // 4, load)
    devices = pai_fleet(load.scale).capacity.sum()
    popularity = _popularity(pool, fresh)
    each = load.recurring * float(popularity @ (pool.workers * pool.length_s))
    each += (1 - load.recurring) * float((fresh.workers * fresh.length_s).mean())
    arrivals = _arrivals(rng, load.load * devices / each, load)
    again = rng.random(len(arrivals)) < load.recurring
    number = np.where(again, rng.choice(len(pool.user), len(arrivals), p=popularity), 0)
    jobs = []
    new = 0
    for n, arrival in enumerate(arrivals.tolist()):
        tasks, task = (pool, int(number[n])) if again[n] else (fresh, new % len(fresh.user))
        new += not again[n]
        length = float(tasks.length_s[task]) * float(np.exp(load.run_sigma * rng.standard_normal()))
        if rng.random() < load.breaks_off:
            length *= float(rng.uniform(0.02, 0.8))
        jobs.append(_job(n, arrival, length, tasks, task, f"r{task}" if again[n] else f"n{new}"))
    return jobs


def _popularity(pool: _Tasks, others: _Tasks) -> Floats:
    """How often each recurring task runs, a few far more often than most; those of one need hold as much device time
    among them as they do among all others (a few tasks drawn at random would not)."""
    popularity = 1.0 / np.arange(1, len(pool.user) + 1) ** 0.5
    for need in range(len(NEEDS)):
        ours, theirs = pool.need == need, others.need == need
        holds = float((popularity * pool.workers * pool.length_s)[ours].sum())
        popularity[ours] *= float((others.workers * others.length_s)[theirs].sum()) / max(holds, 1e-9)
    return np.asarray(popularity / popularity.sum(), np.float64)


def _tasks(rng: np.random.Generator, count: int, load: PaiLoad) -> _Tasks:
    need = rng.choice(3, count, p=NEEDS)
    workers = np.where(need == 2, _draw(rng, V100_WIDTHS, count), _draw(rng, WIDTHS, count)).astype(np.int64)
    share = np.where(need == 0, _draw(rng, SHARES, count), 1.0)
    cpus = np.where(need == 0, _draw(rng, CPUS, count), np.minimum(_draw(rng, CPUS, count), 10.0))
    memory = np.where(need == 0, rng.choice([1.0, 2.0, 4.0], count), rng.choice([4.0, 8.0, 14.0], count))
    # What makes tasks differ in length is mostly who runs them and what they train.
    user, model = rng.zipf(1.5, count) % max(20, round(USERS * load.scale)), rng.integers(MODELS, size=count)
    base = np.random.default_rng(1).standard_normal((USERS, MODELS))[user, model]
    spread = load.sigma * (np.sqrt(1 - OWN) * base + np.sqrt(OWN) * rng.standard_normal(count))
    length = np.clip(np.where(need == 2, V100_LONGER, 1.0) * load.median_s * np.exp(spread), 30.0, load.longest_s)
    return _Tasks(user, model, need, workers, share, cpus, memory, length)


def _draw(rng: np.random.Generator, chances: dict[int, float] | dict[float, float], count: int) -> Floats:
    values = np.array(list(chances), np.float64)
    drawn: Floats = rng.choice(values, count, p=np.array(list(chances.values())))
    return drawn


def _arrivals(rng: np.random.Generator, per_s: float, load: PaiLoad) -> Floats:
    """A Poisson process that follows the day, its peak 15 hours in."""
    count = min(rng.poisson(per_s * (1 + load.day_swing) * load.days * DAY_S), MOST_TASKS)
    times = np.sort(rng.uniform(0, load.days * DAY_S, count))
    rate = 1 + load.day_swing * np.sin(2 * np.pi * (times / DAY_S - 0.375))
    kept: Floats = times[rng.uniform(0, 1 + load.day_swing, count) < rate].round(1)
    return kept


def _job(number: int, arrival: float, length: float, tasks: _Tasks, task: int, tag: str) -> Job:
    need = int(tasks.need[task])
    weak = 0.9 if need == 0 else 0.35
    speeds = dict.fromkeys(V100, 1.0) | ({part.kind: weak for part in PARTS[:3]} if need < 2 else {})
    return Job(
        id=str(number),
        arrival=Seconds(arrival),
        duration=Seconds(round(max(length, 1.0), 1)),
        gpus=int(tasks.workers[task]),
        user=f"u{tasks.user[task]}",
        model=f"m{tasks.model[task]}",
        tag=tag,
        kind=V100[0],
        speeds=speeds,
        mixed=False,
        share=Share(float(tasks.share[task])),
        memory=Bytes(int(float(tasks.memory_gib[task]) * GIB)),
        cpus=float(tasks.cpus[task]),
    )
