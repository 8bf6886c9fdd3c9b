"""How often each expert of a model was chosen lately, on all groups that serve it, and how well that was foreseen."""

from __future__ import annotations

from collections import deque

import numpy as np

from moe.arrays import Floats, Ints
from moe.popularity import Accuracy, Marginal, Recent
from serving.worker.group import RouteCounts

MOST_TOP = 8
"""Experts whose being foreseen is measured; fewer where a layer has few."""
MOST_STEPS = 32
"""Of a batch, from all groups."""
TOLD_TOP = 3
"""Experts of a layer that are named to an operator."""


class ExpertPopularity:
    """Counts are gathered until there are enough to tell something; then they are a batch of the recent stream."""

    def __init__(self, layers: int, experts: int, top_k: int, least_tokens: int) -> None:
        self.recent = Recent(layers, experts)
        self.last: Floats | None = None
        """[layers, experts]: the choices of the last batch."""
        self.last_steps: Floats = np.zeros((0, layers, experts))
        """[steps, layers, experts]: choices a token of some of its steps; none if all were small."""
        self.accuracy: Accuracy | None = None
        """Of what was expected of the last batch."""
        self._top = max(1, min(MOST_TOP, experts // 4))
        self._top_k, self._least_tokens = top_k, least_tokens
        self._waiting: Floats = np.zeros((layers, experts))
        self._waiting_steps: deque[Floats] = deque(maxlen=MOST_STEPS)

    def begin_with(self, profile: Marginal) -> None:
        """What was learned before, elsewhere, counts as the first batch, and as no larger than one."""
        self.last = profile.load() * self._least_tokens
        self.recent.note(self.last, self._least_tokens)

    def add(self, counts: RouteCounts) -> None:
        """What a group has counted since it was last asked."""
        self._waiting = self._waiting + np.array(counts.all, np.float64)
        common = min(map(len, counts.steps), default=0)
        for number in range(-common, 0):
            step = np.array([layer[number] for layer in counts.steps], np.float64)
            self._waiting_steps.append(self._top_k * step / step.sum(axis=1, keepdims=True))

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
        self.last_steps = np.array(self._waiting_steps).reshape(-1, *self.last.shape)
        self._waiting_steps.clear()
        self.recent.note(self.last, tokens, self.last_steps)
        return True

    def top(self) -> Ints:
        """[layers, up to 3]: the experts most chosen in the last batch, the first of them first."""
        assert self.last is not None
        return np.argsort(-self.last, axis=1, kind="stable")[:, :TOLD_TOP]

    def top_share(self) -> Floats:
        """[layers, up to 3]: of the last batch's choices, what each of these had."""
        assert self.last is not None
        chosen = np.take_along_axis(self.last, self.top(), axis=1)
        return np.asarray(chosen / np.maximum(self.last.sum(axis=1, keepdims=True), 1))
