"""How fast a job trains on the devices it holds: the simulator's physics. A live queue measures this instead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from training.ledger import Ledger
from training.table import Table

SHARING_SLOWDOWN = 0.28
"""Of a job whose device is otherwise wholly used by its neighbours (MLaaS in the wild, section 6)."""


class Interference(Protocol):
    """What sharing a device costs."""

    def factor(self, table: Table, row: int, others: list[int]) -> float:
        """The speed of a job beside `others`, against alone."""
        ...


@dataclass(frozen=True)
class Shared:
    """Neighbours slow a job in proportion to what they hold; jobs packed onto one device share it, with a gain, the
    one that holds most first."""

    slowdown: float = SHARING_SLOWDOWN
    packing_gain: float = 1.2
    """Of the throughput of a device that two jobs are packed on, against one job."""

    def factor(self, table: Table, row: int, others: list[int]) -> float:
        if table.in_use[row] < table.share[row]:
            mine, theirs = float(table.in_use[row]), float(table.in_use[others].max())
            if mine > theirs:  # who holds most is not slowed; the others live on what it leaves
                return 1.0
            if mine < theirs:
                return max(self.packing_gain - 1, 0.0) / len(others)
            return min(1.0, self.packing_gain / (1 + len(others)))
        return 1 / (1 + self.slowdown * float(table.in_use[others].sum()))


class Speeds(Protocol):
    """Progress each second of a job that runs."""

    def rate(self, table: Table, ledger: Ledger, row: int) -> float: ...

    def until(self, table: Table, ledger: Ledger, row: int) -> float:
        """Seconds of work at which the rate changes by itself; infinite where it does not."""
        ...


@dataclass(frozen=True)
class CurveSpeeds:
    """By the job's curve, the mean speed of its workers' kinds, how far it is spread, and its neighbours."""

    interference: Interference = Shared()

    def rate(self, table: Table, ledger: Ledger, row: int) -> float:
        count = int(table.total[row])
        speed = float(table.workers[row] @ table.speed[row]) / count
        rate = table.speedup_at(row, count) / float(table.one[row]) * speed
        if table.spread_speed[row] < 1 and is_spread(ledger, row):
            rate *= table.spread_speed[row]
        if table.in_use[row] < 1:
            devices = ledger.held[row].tolist()
            beside = [[other for other in ledger.tenants[device] if other != row] for device in devices]
            # Workers go in step: the one with the worst neighbours holds up the rest.
            factor = min(self.interference.factor(table, row, others) if others else 1.0 for others in beside)
            rate *= factor
            if any(beside) and table.in_use[row] < table.share[row]:
                table.packed[row] = factor
        return rate

    def until(self, table: Table, ledger: Ledger, row: int) -> float:
        return math.inf


def is_spread(ledger: Ledger, row: int) -> bool:
    """Whether it is on more nodes than it needs."""
    nodes = ledger.nodes_of(row)
    sizes = ledger.fleet.node_size
    return len(np.unique(nodes)) > -(-len(nodes) // int(sizes[nodes].max()))
