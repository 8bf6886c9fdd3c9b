"""How often each expert was chosen, in all batches seen: the estimate that knows nothing of the batch in hand."""

from __future__ import annotations

import numpy as np

from moe.arrays import Floats
from moe.popularity.base import Routes, count_choices


class Marginal:
    def __init__(self, layers: int, experts: int) -> None:
        self.choices = np.zeros((layers, experts))
        self.tokens = 0

    def learn(self, routes: Routes) -> None:
        self.choices += count_choices(routes, self.choices.shape[1])
        self.tokens += len(routes)

    def load(self) -> Floats:
        """Even where nothing was seen."""
        if self.tokens == 0:
            return np.full(self.choices.shape, 1 / self.choices.shape[1])
        return self.choices / self.tokens

    def ahead(self, layer: int, routes: Routes) -> Floats:
        return np.asarray(len(routes) * self.load()[layer])
