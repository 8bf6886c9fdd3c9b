"""Tiresias' 2D-Gittins: the job most likely to end soon for the service it would take goes first.

The index at attained service a is sup_D P(S - a <= D | S > a) / E[min(S - a, D) | S > a], with S distributed as
`samples` (GPU-seconds), or as the jobs that have ended where none are given. It is kept constant within cells of
attained service, so that two equal jobs do not take turns for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from training.arrays import Floats, Ints
from training.ordering import Ordering
from training.view import View

CELLS = 32
ENOUGH = 16
"""Ended jobs before which the order is by attained service alone."""
MOST = 1024


@dataclass(frozen=True)
class TiresiasGittins(Ordering):
    name: ClassVar[str] = "tiresias-gittins"
    samples: tuple[float, ...] = ()

    def known(self, view: View) -> Floats:
        """What is known of the distribution: learned from a number of ended jobs that doubles."""
        if self.samples:
            return np.array(self.samples)
        ended = len(view.finished)
        if ended < ENOUGH:
            return np.zeros(0)
        return view.finished_service[: 1 << (ended.bit_length() - 1)][-MOST:]

    def key(self, view: View) -> Floats:
        edges, index = _table(self.known(view).tobytes())
        return -index[np.searchsorted(edges, view.attained, side="right") - 1]

    def wake(self, view: View, workers: Ints) -> float:
        """When the next running job leaves its cell."""
        edges, _ = _table(self.known(view).tobytes())
        held = workers.sum(axis=1)
        running = held > 0
        attained = view.attained[running]
        limit = np.append(edges, np.inf)[np.searchsorted(edges, attained, side="right")]
        return float((view.now + (limit - attained) / held[running]).min(initial=np.inf))


def gittins_index(samples: Floats, attained: float) -> float:
    """The index of a job with that much service, when S is one of the samples, each as likely."""
    left = np.sort(samples[samples > attained]) - attained
    if not len(left):
        return 0.0
    # A few quantiles stand for all D: the first ends of many samples are noise.
    ended = np.unique(np.ceil(len(left) * np.arange(1, CELLS + 1) / CELLS).astype(np.int64))
    until = left[ended - 1]
    service = np.cumsum(left)[ended - 1] + (len(left) - ended) * until
    return float((ended / service).max())


@lru_cache(maxsize=8)
def _table(samples: bytes) -> tuple[Floats, Floats]:
    """The lower edges of the cells and the index in each."""
    values = np.frombuffer(samples, np.float64)
    if not len(values):  # nothing is known: less service, higher index
        edges = np.concatenate(([0.0], np.geomspace(60.0, 1e8, CELLS)))
        return edges, 1 / (edges + 1)
    points = np.quantile(values, np.arange(1, CELLS) / CELLS)
    edges = np.unique(np.concatenate(([0.0], points)))
    return edges, np.array([gittins_index(values, float(edge)) for edge in edges])
