"""One run of `penstock moe replicate`: a placement, what it is worth, and what it would take to get there."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moe.arrays import Floats
from moe.decision import FRESH_SEED, JUDGING_DRAWS
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.replication import Policy, Scenarios, Static, Task, place
from moe.split import Splitter, balancedness, even_levels


@dataclass(frozen=True)
class Replication:
    placement: ExpertPlacement
    balance: Floats
    """[layers]: on the load given, tokens split as is best."""
    balance_even: Floats
    balance_before: Floats
    expected: Floats
    """[layers]: greatest over mean device load, mean over what the load may become."""
    expected_before: Floats
    copies: int
    expert_bytes: int
    seconds: float

    def summary(self) -> dict[str, Any]:
        before, after = float(self.expected_before.mean()), float(self.expected.mean())
        return {
            "balancedness": float(self.balance.mean()),
            "balancedness_before": float(self.balance_before.mean()),
            "balancedness_even": float(self.balance_even.mean()),
            "worst_layer": float(self.balance.min()),
            "balancedness_drift": 1 / after,
            "balancedness_drift_before": 1 / before,
            "expected_gain": 1 - after / before,
            "changed": self.copies > 0,
            "copies": self.copies,
            "bytes_moved": self.copies * self.expert_bytes,
            "seconds": self.seconds,
        }


def replicate(task: Task, policy: Policy, drift: float, expert_bytes: int) -> Replication:
    """Before is the previous placement, on the devices it was made for; without one, experts in order."""
    before = Static().place(task) if task.previous is None else task.previous
    _warm(policy)
    begin = time.process_time()
    placement = place(policy, task)
    seconds = time.process_time() - begin
    scenarios = Scenarios.of(task, drift, JUDGING_DRAWS, 0.0, np.random.default_rng(FRESH_SEED), jittered=True)
    speed = task.pool.speed
    speed_before = speed if before.devices == len(speed) else np.ones(before.devices)
    return Replication(
        placement,
        balance=balancedness(task.load, Splitter(placement, speed).levels(task.load), speed),
        balance_even=balancedness(task.load, even_levels(task.load, placement, speed), speed),
        balance_before=balancedness(task.load, Splitter(before, speed_before).levels(task.load), speed_before),
        expected=scenarios.expected(placement, speed),
        expected_before=scenarios.expected(before, speed_before),
        copies=int(placement.copies_from(before).sum()),
        expert_bytes=expert_bytes,
        seconds=seconds,
    )


def memory_pool(memory: list[int], expert_bytes: int, layers: int, experts: int, nodes: int) -> Pool:
    """As many slots on each device as it has memory for, and use."""
    held = Pool.of_memory(memory, expert_bytes, layers)
    even = Pool.even(len(memory), len(memory), nodes)
    return replace(held, slots=np.minimum(held.slots, experts), node=even.node)


def _warm(policy: Policy) -> None:
    """Compile, or load what is compiled, before the time is taken."""
    policy.place(Task(np.ones((1, 2)), Pool.even(2, 3)))
