"""Penstock's own: least remaining time x GPUs^power first, the power being the one that would have served this queue
best so far; elastic jobs run with their base and grow onto what is left.

The power weighs short jobs against narrow ones (0: remaining time, 1: remaining service). Each time the number of
arrivals has doubled, the latest of them are replayed under several powers. Without durations: attained service in
two queues, and in the second whoever has most of it first, since it is nearest to its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from training.arrays import Floats
from training.growing import bases, grown
from training.kernels import replay
from training.ordering import in_order
from training.policies.tiresias_las import TiresiasLas
from training.view import Allocation, Information, View

POWERS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
FIRST, LATEST, CLEARLY = 64, 4096, 0.03
"""Arrivals before the first replay, the most that are replayed, and the gain that counts."""
QUEUES = TiresiasLas(thresholds=(3600.0, 36000.0))
"""For jobs whose duration nobody knows."""


@dataclass(frozen=True)
class Penstock:
    name: ClassVar[str] = "penstock"
    strict: bool = False
    elastic: bool = True
    information: Information = "oracle"
    round_s: float = 0.0

    def allocate(self, view: View) -> Allocation:
        if self.information == "none":
            key = QUEUES.key(view) - 1e-15 * np.where(view.running | (view.attained > 0), view.attained, 0.0)
            workers = in_order(view, key, self.strict)
            return Allocation(workers, wake=QUEUES.wake(view, workers))
        key = view.remaining_s * view.gpus.astype(np.float64) ** best_power(view)
        if not self.elastic or (view.fewest == view.most).all():
            return Allocation(in_order(view, key, self.strict))
        return Allocation(grown(view, bases(view, key, preemptive=True), view.remaining_s))


def best_power(view: View) -> float:
    """The power that the latest arrivals would have waited least under."""
    if view.arrived < FIRST:
        return 1.0
    last = 1 << (view.arrived.bit_length() - 1)
    submit, work, gpus = view.past(max(0, last - LATEST), last)
    return _replayed(submit.tobytes(), work.tobytes(), gpus.tobytes(), int(view.fleet.capacity.sum()))


@lru_cache(maxsize=16)
def _replayed(submit: bytes, work: bytes, gpus: bytes, capacity: int) -> float:
    times, works, widths = np.frombuffer(submit), np.frombuffer(work), np.frombuffer(gpus, np.int64)
    size = len(times)
    waits: list[float] = []
    for power in POWERS:
        room: tuple[Floats, Floats] = (np.zeros(size), np.zeros(size))
        waits.append(
            replay(times, works, widths, capacity, power, *room, np.zeros(size, np.int64), np.zeros(size, np.bool_))
        )
    best = int(np.argmin(waits))
    # Remaining service is the safe choice: another must have been better by more than chance.
    return POWERS[best] if waits[best] < (1 - CLEARLY) * waits[POWERS.index(1.0)] else 1.0
