"""Which lent nodes to take back with the least harm to training (Lyra, section 4 of its paper). Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np

from training.arrays import Ints

ReclaimRule = Literal["cost", "fewest-jobs", "random"]
RULES: tuple[ReclaimRule, ...] = get_args(ReclaimRule)
Spread = dict[int, dict[int, int]]
"""Workers by job and node."""


def choose_nodes(
    lent: list[int],
    jobs_on: Spread,
    spare: Mapping[int, int],
    count: int,
    rule: ReclaimRule = "cost",
    rng: np.random.Generator | None = None,
) -> list[int]:
    """`count` of the `lent` nodes, in the order to take them.

    `spare[job]` is how many workers it could lose and still run. By `cost`, a node's cost is the sum over the jobs
    that taking it preempts of 1 / nodes that job spans; a preempted job leaves its other nodes too, which then cost
    less. Of two nodes that cost the same, the one with fewer workers goes first.
    """
    if rule == "random":
        assert rng is not None
        return [int(node) for node in rng.permutation(np.array(lent, np.int64))[:count]]
    harm = Harm(lent, jobs_on, spare)
    taken: list[int] = []
    for _ in range(min(count, len(lent))):
        first = harm.jobs if rule == "fewest-jobs" else harm.cost
        node = min(first, key=lambda node: (round(first[node], 9), harm.workers[node], node))
        taken.append(node)
        harm.take(node)
    return taken


class Harm:
    """What taking each node that is still there would do."""

    def __init__(
        self, nodes: list[int], jobs_on: Spread, spare: Mapping[int, int], unsaved_s: Mapping[int, float] | None = None
    ) -> None:
        """`unsaved_s[job]`: what it loses when it is preempted."""
        self._unsaved_s = unsaved_s or {}
        self._nodes_of = {job: dict(there) for job, there in jobs_on.items()}
        self._spare = dict(spare)
        self._here: dict[int, set[int]] = {node: set() for node in nodes}
        for job, there in jobs_on.items():
            for node in there.keys() & self._here.keys():
                self._here[node].add(job)
        self.cost: dict[int, float] = {}
        self.jobs: dict[int, float] = {}
        self.workers: dict[int, int] = {}
        self.unsaved_s: dict[int, float] = {}
        for node in nodes:
            self._price(node)

    def key(self, node: int) -> tuple[float, float, int]:
        """What is least for the node to be taken first."""
        return round(self.cost[node], 9), self.unsaved_s[node], self.workers[node]

    def preempted(self, node: int) -> list[int]:
        """Jobs that cannot go on without it."""
        nodes_of, spare = self._nodes_of, self._spare
        return [job for job in self._here[node] if nodes_of[job][node] > spare.get(job, 0)]

    def _price(self, node: int) -> None:
        here, nodes_of, preempted = self._here[node], self._nodes_of, self.preempted(node)
        self.cost[node] = sum(1 / len(nodes_of[job]) for job in preempted)
        self.jobs[node] = float(len(here))
        self.workers[node] = sum(nodes_of[job][node] for job in here)
        self.unsaved_s[node] = sum(self._unsaved_s.get(job, 0.0) for job in preempted)

    def take(self, node: int) -> None:
        """Its jobs are scaled in where they can be, else preempted."""
        touched: set[int] = set()
        for job in list(self._here[node]):
            there = self._nodes_of[job]
            touched |= there.keys() & self._here.keys()
            if there[node] <= self._spare.get(job, 0):
                self._spare[job] -= there.pop(node)
                self._here[node].discard(job)
                continue
            for other in there.keys() & self._here.keys():
                self._here[other].discard(job)
            there.clear()
        for column in (self.cost, self.jobs, self.workers, self.unsaved_s, self._here):
            del column[node]
        for other in touched - {node}:
            self._price(other)


def spread_over(held: Mapping[int, Ints], device_node: Ints, nodes: list[int]) -> Spread:
    """Workers by job and node, of the jobs that touch one of the `nodes`."""
    if not held:
        return {}
    job = np.repeat(np.fromiter(held, np.int64, len(held)), [len(devices) for devices in held.values()])
    node = device_node[np.concatenate(list(held.values()))]
    touching = np.isin(job, np.unique(job[np.isin(node, nodes)]))
    pairs, counts = np.unique(np.stack((job[touching], node[touching])), axis=1, return_counts=True)
    found: Spread = {}
    for owner, place, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
        found.setdefault(owner, {})[place] = count
    return found
