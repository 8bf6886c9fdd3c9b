"""Recent popularity and paths, weighed by how far off each was lately: paths know the batch in hand, but only from
traffic like that they were learned from; the recent stream knows the traffic, but not this batch."""

from __future__ import annotations

import numpy as np

from moe.arrays import Floats
from moe.popularity.base import Routes, count_choices
from moe.popularity.paths import Paths
from moe.popularity.recent import Recent


class Blend:
    def __init__(self, path: Paths, recent: Recent, learn_paths: bool = True, half_life: float = 1.0) -> None:
        """With `learn_paths` the paths go on learning; else they are only read. `half_life` of what was shown, in
        batches: whom to trust changes with the traffic."""
        layers, _ = recent.load().shape
        self._path = path
        self._recent = recent
        self._learn_paths = learn_paths
        self._decay = 0.5 ** (1 / half_life)
        self._agree = np.zeros(layers)
        self._differ = np.zeros(layers)
        self._trusts = np.full(layers, 0.5)

    def learn(self, routes: Routes) -> None:
        """Weigh by what this batch shows, then learn it."""
        actual = count_choices(routes, self._recent.load().shape[1])
        for layer in range(1, routes.shape[1]):
            recent = self._recent.ahead(layer, routes)
            differ = self._path.ahead(layer, routes[:, :layer]) - recent
            # Least squares: the share of `differ` by which the path should have moved the recent estimate.
            self._agree[layer] = self._decay * self._agree[layer] + differ @ (actual[layer] - recent)
            self._differ[layer] = self._decay * self._differ[layer] + differ @ differ
        told = self._differ > 0
        self._trusts[told] = np.clip(self._agree[told] / self._differ[told], 0, 1)
        self._recent.learn(routes)
        if self._learn_paths:
            self._path.learn(routes)

    def load(self) -> Floats:
        return self._recent.load()

    def ahead(self, layer: int, routes: Routes) -> Floats:
        recent = self._recent.ahead(layer, routes)
        if layer == 0:
            return recent
        return np.asarray(recent + self._trusts[layer] * (self._path.ahead(layer, routes) - recent))

    @property
    def trust(self) -> Floats:
        """[layers]: the share of the path estimate, between 0 and 1."""
        return self._trusts.copy()
