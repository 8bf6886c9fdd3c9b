"""How often each expert of a model was chosen lately, on all groups that serve it, and how well that was foreseen."""

from __future__ import annotations

import numpy as np

from moe.arrays import Floats
from moe.popularity import Accuracy, Marginal, Recent

MOST_TOP = 8
"""Experts whose being foreseen is measured; fewer where a layer has few."""


class ExpertPopularity:
    """Counts are gathered until there are enough to tell something; then they are a batch of the recent stream."""

    def __init__(self, layers: int, experts: int, top_k: int, least_tokens: int) -> None:
        self.recent = Recent(layers, experts)
        self.last: Floats | None = None
        """[layers, experts]: the choices of the last batch."""
        self.accuracy: Accuracy | None = None
        """Of what was expected of the last batch."""
        self._top = max(1, min(MOST_TOP, experts // 4))
        self._top_k, self._least_tokens = top_k, least_tokens
        self._waiting: Floats = np.zeros((layers, experts))

    def begin_with(self, profile: Marginal) -> None:
        """What was learned before, elsewhere, counts as the first batch, and as no larger than one."""
        self.last = profile.load() * self._least_tokens
        self.recent.note(self.last, self._least_tokens)

    def add(self, counts: Floats) -> None:
        """Choices [layers, experts] that a group has counted since it was last asked."""
        self._waiting = self._waiting + counts

    def learn(self) -> bool:
        """Take what has been gathered as a batch; False while it is too little."""
        layers = len(self._waiting)
        tokens = int(self._waiting.sum() / (layers * self._top_k))
        if tokens < self._least_tokens:
            return False
        if self.last is not None:
            self.accuracy = Accuracy(self._top)
            for expected, came in zip(self.recent.load(), self._waiting, strict=True):
                self.accuracy.note(expected, came)
        self.last, self._waiting = self._waiting, np.zeros_like(self._waiting)
        self.recent.note(self.last, tokens)
        return True

    def top_share(self) -> Floats:
        """[layers]: of the last batch's choices, what the most chosen expert had."""
        assert self.last is not None
        return np.asarray(self.last.max(axis=1) / np.maximum(self.last.sum(axis=1), 1))
