"""Tiresias' 2D-LAS: least attained service (GPUs x time) first, in a few queues.

A job falls into the next queue when its service passes a threshold, and keeps its place by arrival within a queue.
One that waited `promote` times as long as it had run starts anew in the first queue, so that nobody starves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Floats, Ints
from training.ordering import Ordering
from training.view import View

THRESHOLDS = (3600.0, 7200.0, 18000.0)
"""GPU-seconds at which a job is demoted: those of Tiresias' own simulator."""


@dataclass(frozen=True)
class TiresiasLas(Ordering):
    name: ClassVar[str] = "tiresias-las"
    thresholds: tuple[float, ...] = THRESHOLDS
    promote: float = np.inf

    def key(self, view: View) -> Floats:
        return np.searchsorted(self.thresholds, self.service(view), side="right").astype(np.float64)

    def service(self, view: View) -> Floats:
        """What counts for a job's queue: since its last start, where it was promoted then."""
        ran = np.maximum(view.run_before, 1.0) if np.isfinite(self.promote) else np.inf
        promoted = view.waited >= self.promote * np.where(view.running, ran, np.maximum(view.run_s, 1.0))
        since = np.where(view.running, view.attained - view.attained_before, 0.0)
        return np.where(promoted & (view.run_s > 0), since, view.attained)

    def wake(self, view: View, workers: Ints) -> float:
        """When the next running job is demoted, or the next waiting one promoted."""
        held = workers.sum(axis=1)
        service = self.service(view)
        level = np.searchsorted(self.thresholds, service, side="right")
        limit = np.append(self.thresholds, np.inf)[level]
        running = held > 0
        times = view.now + (limit[running] - service[running]) / held[running]
        soonest = float(times.min(initial=np.inf))
        if np.isfinite(self.promote):
            waiting = ~running & (view.run_s > 0) & (level > 0)
            left = self.promote * view.run_s[waiting] - view.waited[waiting]
            soonest = min(soonest, view.now + float(left[left > 0].min(initial=np.inf)))
        return soonest
