"""Phase 1: whether the experts' placement should change now, to what, and which weights must be copied for it.

Pure: it is told what is held and what is expected, and says what to do. Copying and switching are the worker's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moe.arrays import Bools
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.replication import Penstock, Scenarios, Task, place

FRESH_SEED = 2**32 - 1
"""Of the draws, and the jitter of recent batches, that judge a placement; it was searched with others."""
JUDGING_DRAWS = 16


@dataclass(frozen=True)
class Terms:
    """What moving costs and what balance is worth."""

    expert_bytes: int
    bytes_per_s: float = 8e9
    """Into one device, while it serves."""
    hold_s: float = 300.0
    """How long a placement is expected to serve before the next decision that changes it."""
    expert_share: float = 0.5
    """Of a step's time, what waits for the most loaded device."""
    margin: float = 1.5
    """The gain must be so many times the cost: else two placements that are equally good would take turns."""
    least_gain: float = 0.01
    """Share of the greatest device load below which nothing is moved."""

    def slot_cost(self, pool: Pool, layers: int) -> float:
        """What one slot that changes must bring, in its layer's greatest over mean device load."""
        seconds = self.margin * self.expert_bytes / self.bytes_per_s / pool.devices
        return seconds * layers / (self.expert_share * self.hold_s)


@dataclass(frozen=True)
class Copy:
    """The weights of one expert, to a device that has them not."""

    layer: int
    expert: int
    source: int
    device: int


@dataclass(frozen=True)
class Decision:
    placement: ExpertPlacement
    """To go to; the present one if nothing changes."""
    copies: tuple[Copy, ...]
    bytes_moved: int
    expected_before: float
    """Greatest over mean device load, mean over layers and over what the load may become."""
    expected_after: float
    """Of the best that was found, whether it is gone to or not; so are gain and cost."""
    gain_s: float
    """Over the time it is expected to serve."""
    cost_s: float
    """Until the device that gets most has it."""

    @property
    def changes(self) -> bool:
        return bool(self.copies)


def decide(task: Task, terms: Terms, policy: Penstock | None = None) -> Decision:
    """Whether to leave task.previous, which must fit the pool."""
    present = task.previous_here
    assert present is not None, "nothing is held that fits these devices: place afresh"
    layers = present.layers
    policy = policy or Penstock()
    placed = place(replace(policy, move_cost=terms.slot_cost(task.pool, layers)), task)
    fresh = np.random.default_rng(FRESH_SEED)
    judges = Scenarios.of(task, policy.drift, JUDGING_DRAWS, policy.expected, fresh, jittered=True)
    before = float(judges.expected(present, task.pool.speed).mean())
    after = float(judges.expected(placed, task.pool.speed).mean())
    moved = placed.copies_from(present)
    gain_s = (1 - after / before) * terms.expert_share * terms.hold_s
    cost_s = float(moved.sum(axis=(0, 2)).max()) * terms.expert_bytes / terms.bytes_per_s
    if not moved.any() or 1 - after / before < terms.least_gain or gain_s < terms.margin * cost_s:
        return Decision(present, (), 0, before, after, gain_s, cost_s)
    copies = _copies(moved, present, task.pool)
    return Decision(placed, copies, len(copies) * terms.expert_bytes, before, after, gain_s, cost_s)


def _copies(moved: Bools, present: ExpertPlacement, pool: Pool) -> tuple[Copy, ...]:
    """Each from a device on the same node where there is one, the sources taken in turn."""
    held = present.held(present.devices)
    asked = np.zeros(present.devices, np.int64)
    copies = []
    for layer, device, expert in np.argwhere(moved).tolist():
        sources = np.flatnonzero(held[layer, :, expert])
        source = int(min(sources, key=lambda at: (pool.node[at] != pool.node[device], asked[at])))
        asked[source] += 1
        copies.append(Copy(layer, expert, source, device))
    return tuple(copies)
