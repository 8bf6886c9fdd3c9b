"""What an estimator of expert popularity does. Routes say which experts each token chose, by falling gate weight."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from moe.arrays import Floats

Routes = NDArray[Any]
"""Whole numbers [tokens, layers, top_k]: experts."""


class Estimator(Protocol):
    def learn(self, routes: Routes) -> None:
        """See a batch that ran, all its layers."""

    def load(self) -> Floats:
        """[layers, experts]: choices expected of a token of the next batch, of which nothing is known yet."""

    def ahead(self, layer: int, routes: Routes) -> Floats:
        """[experts]: choices expected in this layer of tokens whose routes [tokens, layers before, top_k] are known."""


def count_choices(routes: Routes, experts: int) -> Floats:
    """[layers, experts]: how often each expert was chosen."""
    _, layers, _ = routes.shape
    keys = routes.astype(np.int64) + experts * np.arange(layers)[:, None]
    return np.bincount(keys.ravel(), minlength=layers * experts).reshape(layers, experts).astype(np.float64)
