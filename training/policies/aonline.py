"""AOnline: an arriving job chooses workers and is admitted if what it is worth exceeds the price of what it takes.

The price of a device rises exponentially with use, from the least to the greatest worth of a device-second among the
jobs (a primal-dual rule: near a full cluster only the most valuable still come in). Jobs that are refused ask again
whenever something changes; those that run are never preempted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Floats
from training.kernels import keep_fastest
from training.view import Allocation, Information, View


@dataclass(frozen=True)
class Aonline:
    name: ClassVar[str] = "aonline"
    information: Information = "predicted"
    round_s: float = 0.0

    def allocate(self, view: View) -> Allocation:
        workers = np.zeros_like(view.workers)
        free = view.capacity.copy()
        keep_fastest(view.workers, view.running, view.total, view.speed, free, workers)
        waiting = np.flatnonzero(~view.running)
        if not len(waiting):
            return Allocation(workers)
        worth = unit_worth(view)
        low, high = float(worth.min()) / 2, float(worth.max())
        for job in waiting.tolist():
            best, most = None, 0.0
            for kind in np.flatnonzero((view.speed[job] > 0) & (free >= view.fewest[job])).tolist():
                top = int(min(view.most[job], free[kind]))
                counts = np.unique(np.geomspace(view.fewest[job], top, 8).round().astype(np.int64))
                time = view.remaining_s[job] / (view.speedup_of(job, counts) * view.speed[job, kind])
                used = (view.capacity[kind] - free[kind] + counts) / view.capacity[kind]
                # A utility that falls with the time since arrival: the sooner it ends, the more it is worth.
                waited = view.now - view.submit[job]
                alone = view.remaining_s[job]
                utility = worth[job] * view.gpus[job] * alone * (waited + alone) / (waited + time)
                surplus = utility - price(used, low, high) * counts * time
                at = int(np.argmax(surplus))
                if surplus[at] > most:
                    best, most = (kind, int(counts[at])), float(surplus[at])
            if best is not None:
                workers[job, best[0]] = best[1]
                free[best[0]] -= best[1]
        if not workers.any():  # an idle cluster refuses nobody
            job = int(waiting[np.argmax(worth[waiting])])
            workers[job, int(np.argmax(np.where(view.capacity >= view.fewest[job], view.speed[job], -1)))] = (
                view.fewest[job]
            )
        return Allocation(workers)


def unit_worth(view: View) -> Floats:
    """Of a device-second: the job's weight over what it takes, so that small jobs are worth most."""
    weight = np.maximum(view.priority, 0.0) + 1.0
    worth: Floats = weight / np.maximum(view.estimate_s * view.gpus, 1e-6)
    return worth


def price(use: Floats, low: float, high: float) -> Floats:
    """Of a device-second at a share of the devices in use: `low` when idle, `high` when full."""
    paid: Floats = low * (high / low) ** np.clip(use, 0.0, 1.0)
    return paid
