"""Our policy: the least expected greatest device load when loads drift and each batch is split as is best for it.

Without a previous placement, none is taken that would be worse for the expected load itself than balanced packing with
an even split. With one, slots that change cost something, and a layer stays as it is where the gain, on draws or
jittered batches that the search has not seen, is smaller than the move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.replication.base import Task
from moe.replication.build_kernel import make_yard
from moe.replication.counting import counted, falling, packed
from moe.replication.scenarios import Scenarios
from moe.replication.search_kernel import Judge, search_layers
from moe.split import even_levels
from moe.split_kernel import make_homes, make_work

RECIPES = np.array(
    [
        # discount, power, bridge: see Recipe. Which is best depends on how skewed the load is.
        (0.0, 1.0, 0.5),
        (0.3, 1.0, 0.5),
        (0.0, 0.8, 0.5),
        (0.5, 1.2, 0.5),
        (0.0, 1.0, 0.8),
        (0.2, 1.0, 0.3),
    ]
)
STEPS = 300
ROUNDING = 1e-9


@dataclass(frozen=True)
class Penstock:
    drift: float = 0.3
    """Sigma of the log-normal factors, where no recent batches are given."""
    draws: int = 8
    """At least one."""
    expected: float = 0.2
    """Weight of the expected load itself; the rest is for what it may become."""
    move_cost: float = 0.002
    """What a slot that changes must bring, in its layer's greatest over mean device load."""
    steps: int | None = None
    """Exchanges tried in each layer. By default 300 where there is a history or a previous placement, or where devices
    differ in slots for their speed, and none otherwise: against so few draws they would fit the draws."""
    seed: int = 0

    def place(self, task: Task) -> ExpertPlacement:
        layers, experts = task.load.shape
        pool, chance = task.pool, np.random.default_rng(self.seed)
        scenarios = Scenarios.of(task, self.drift, self.draws, self.expected, chance)
        plain = packed(task.load, counted(task.load, pool.total, pool.devices), pool, distinct=True)
        limit = even_levels(task.load, plain, pool.speed) * (1 + ROUNDING)
        previous = task.previous_here
        if previous is not None:
            limit[:] = np.inf
        steps = self.steps
        if steps is None:
            steps = 0 if previous is None and task.history is None and _is_even(pool) else STEPS
        expert = plain.expert.copy()
        search_layers(
            task.load,
            falling(task.load),
            scenarios.load,
            limit,
            np.empty((layers, 0), np.int64) if previous is None else previous.expert,
            plain.expert,
            RECIPES,
            self.move_cost if previous is not None else 0.0,
            chance.random((layers, steps, 4)),
            make_homes(pool.start, experts),
            _judge(task, scenarios),
            make_yard(experts, pool.devices),
            expert,
            np.empty(layers),
        )
        return self.worth_moving(task, ExpertPlacement(expert, pool.start, experts))

    def worth_moving(self, task: Task, placed: ExpertPlacement) -> ExpertPlacement:
        """Layer by layer, the new placement where it is worth its moves, and the previous one elsewhere."""
        previous = task.previous_here
        if previous is None:
            return placed
        fresh = np.random.default_rng([self.seed, 1])
        scenarios = Scenarios.of(task, self.drift, 2 * self.draws, self.expected, fresh, jittered=True)
        moves = placed.copies_from(previous).sum(axis=(1, 2))
        gain = scenarios.expected(previous, task.pool.speed) - scenarios.expected(placed, task.pool.speed)
        worth = gain > self.move_cost * moves
        expert = np.where(worth[:, None], placed.expert, previous.expert)
        return ExpertPlacement(expert, task.pool.start, placed.experts)


def _is_even(pool: Pool) -> bool:
    """Whether slots are as speeds, but for one: else fast devices may lack room for their share."""
    fair = pool.speed * pool.total / pool.speed.sum()
    return bool(np.all(np.abs(pool.slots - fair) < 1))


def _judge(task: Task, scenarios: Scenarios) -> Judge:
    number, devices = len(scenarios.weight), task.pool.devices
    experts = task.load.shape[1]
    return Judge(
        speed=task.pool.speed,
        weight=scenarios.weight,
        mean=np.empty(number),
        level=np.empty(number),
        trial=np.empty(number),
        lower=np.empty(number),
        tight=np.zeros((number, devices), np.int64),
        trial_tight=np.zeros((number, devices), np.int64),
        limit=np.empty(1),
        held=np.zeros((devices, experts), np.int64),
        flow=np.empty(task.pool.total),
        work=make_work(experts, devices),
    )
