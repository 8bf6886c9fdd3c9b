"""How often each expert of a layer was chosen, noted where the gate speaks; read and cleared by whoever plans."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

MOST_HELD = 65536
"""Choices that wait to be counted: counting them together costs a step next to nothing."""
STEP_TOKENS = 256
"""From so many on, a step's own counts are kept: how balanced fewer tokens are is mostly chance."""
MOST_STEPS = 8


class RouteCounter:
    """One layer's, on one thread. With `keep_routes`, also which experts each token chose, in the order of tokens."""

    def __init__(self, experts: int, keep_routes: bool = False) -> None:
        self._counts = torch.zeros(experts, dtype=torch.int64)
        self._waiting: list[Tensor] = []
        self._held = 0
        self._large: deque[slice] = deque(maxlen=MOST_STEPS)
        """Of the choices that wait, those of one step."""
        self._steps: deque[Tensor] = deque(maxlen=MOST_STEPS)
        self._routes: list[Tensor] | None = [] if keep_routes else None

    def note(self, experts: Tensor) -> None:
        """experts [tokens, top_k], which nobody changes later; on a GPU it is rarely waited for."""
        begin, choices = self._held, experts.numel()
        self._waiting.append(experts)
        self._held += choices
        if choices >= STEP_TOKENS and len(experts) >= STEP_TOKENS:
            self._large.append(slice(begin, self._held))
        if self._held >= MOST_HELD:
            self._count()

    def take(self) -> Tensor:
        """Counts [experts] since they were last taken."""
        self._count()
        taken, self._counts = self._counts, torch.zeros_like(self._counts)
        return taken

    def take_steps(self) -> Tensor:
        """Counts [steps, experts] of the last large steps since they were last taken, the oldest first."""
        self._count()
        taken = list(self._steps)
        self._steps.clear()
        return torch.stack(taken) if taken else self._counts.new_empty(0, len(self._counts))

    def take_routes(self) -> Tensor:
        """Routes [tokens, top_k] since they were last taken."""
        assert self._routes is not None, "this counter keeps no routes"
        self._count()
        routes, self._routes = self._routes, []
        return torch.cat(routes) if routes else torch.empty(0, 0, dtype=torch.int64)

    def _count(self) -> None:
        if self._waiting:
            routes = torch.cat(self._waiting).cpu()
            choices, experts = routes.flatten(), len(self._counts)
            self._counts = self._counts + torch.bincount(choices, minlength=experts)
            self._steps.extend(torch.bincount(choices[step], minlength=experts) for step in self._large)
            if self._routes is not None:
                self._routes.append(routes)
        self._waiting, self._held = [], 0
        self._large.clear()
