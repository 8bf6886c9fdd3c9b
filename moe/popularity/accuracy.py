"""How near an estimate of popularity was to what then happened."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moe.arrays import Floats
from moe.popularity.base import Estimator, Routes, count_choices


def top_recall(estimate: Floats, actual: Floats, k: int) -> float:
    """The share of the k most chosen experts that were among the k expected most."""
    expected = set(np.argsort(-estimate, kind="stable")[:k].tolist())
    return len(expected.intersection(np.argsort(-actual, kind="stable")[:k].tolist())) / k


def total_variation(estimate: Floats, actual: Floats) -> float:
    """The share of choices that were expected elsewhere: 0 is exact, 1 is all wrong."""
    if estimate.sum() <= 0 or actual.sum() <= 0:
        return 0.0
    return float(np.abs(estimate / estimate.sum() - actual / actual.sum()).sum() / 2)


@dataclass
class Accuracy:
    """Means over all layers and batches measured; what is exported."""

    k: int = 8
    recall: float = 0.0
    variation: float = 0.0
    layers: int = 0

    def note(self, estimate: Floats, actual: Floats) -> None:
        """One layer of one batch, [experts] each."""
        self.layers += 1
        self.recall += (top_recall(estimate, actual, self.k) - self.recall) / self.layers
        self.variation += (total_variation(estimate, actual) - self.variation) / self.layers

    def measure(self, estimator: Estimator, routes: Routes, experts: int) -> None:
        """All layers but the first of a batch that the estimator has not learned yet."""
        actual = count_choices(routes, experts)
        for layer in range(1, routes.shape[1]):
            self.note(estimator.ahead(layer, routes[:, :layer]), actual[layer])
