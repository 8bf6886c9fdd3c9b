"""How often each expert was chosen lately: a decayed stream, and the last batches as they were.

What periodic placement looks at: popularity follows the traffic, and a change of domain shows within a few batches.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from moe.arrays import Floats
from moe.popularity.base import Routes, count_choices


class Recent:
    def __init__(self, layers: int, experts: int, half_life: float = 2.0, keep: int = 32) -> None:
        """`half_life` in batches; `keep` batches are remembered whole."""
        self._choices = np.zeros((layers, experts))
        self._tokens = 0.0
        self._decay = 0.5 ** (1 / half_life)
        self._batches: deque[Floats] = deque(maxlen=keep)

    def learn(self, routes: Routes) -> None:
        self.note(count_choices(routes, self._choices.shape[1]), len(routes))

    def note(self, choices: Floats, tokens: int, steps: Floats | None = None) -> None:
        """The same, from choices [layers, experts] counted elsewhere. Of `steps` [steps, layers, experts], choices a
        token of some of them, each is remembered in place of the sum, which varies less than what devices wait for."""
        if tokens == 0:
            return
        if steps is None or not len(steps):
            self._batches.append(choices / tokens)
        else:
            self._batches.extend(steps)
        self._choices = self._decay * self._choices + choices
        self._tokens = self._decay * self._tokens + tokens

    def load(self) -> Floats:
        """Even where nothing was seen."""
        if self._tokens == 0:
            return np.full(self._choices.shape, 1 / self._choices.shape[1])
        return self._choices / self._tokens

    def ahead(self, layer: int, routes: Routes) -> Floats:
        return np.asarray(len(routes) * self.load()[layer])

    def history(self) -> Floats:
        """[batches, layers, experts]: choices a token in each batch remembered, the oldest first."""
        return np.array(self._batches).reshape(-1, *self._choices.shape)
