"""How often each expert of a layer was chosen, noted where the gate speaks; read and cleared by whoever plans."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_HELD = 65536
"""Choices that wait to be counted: counting them together costs a step next to nothing."""


class RouteCounter:
    """One layer's, on one thread. With `keep_routes`, also which experts each token chose, in the order of tokens."""

    def __init__(self, experts: int, keep_routes: bool = False) -> None:
        self._counts = torch.zeros(experts, dtype=torch.int64)
        self._waiting: list[Tensor] = []
        self._held = 0
        self._routes: list[Tensor] | None = [] if keep_routes else None

    def note(self, experts: Tensor) -> None:
        """experts [tokens, top_k], which nobody changes later; on a GPU it is rarely waited for."""
        self._waiting.append(experts)
        self._held += experts.numel()
        if self._held >= MOST_HELD:
            self._count()

    def take(self) -> Tensor:
        """Counts [experts] since they were last taken."""
        self._count()
        taken, self._counts = self._counts, torch.zeros_like(self._counts)
        return taken

    def take_routes(self) -> Tensor:
        """Routes [tokens, top_k] since they were last taken."""
        assert self._routes is not None, "this counter keeps no routes"
        self._count()
        routes, self._routes = self._routes, []
        return torch.cat(routes) if routes else torch.empty(0, 0, dtype=torch.int64)

    def _count(self) -> None:
        if self._waiting:
            routes = torch.cat(self._waiting).cpu()
            self._counts = self._counts + torch.bincount(routes.flatten(), minlength=len(self._counts))
            if self._routes is not None:
                self._routes.append(routes)
        self._waiting, self._held = [], 0
