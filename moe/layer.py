"""An expert layer: router, gate, experts, and shared experts that every token visits."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from moe.counter import RouteCounter
from moe.gate import Gate, route


class ExpertLayer(nn.Module):
    """`router` gives scores [tokens, experts]; `experts` is a Compute; `shared`, if any, takes and gives
    [tokens, hidden]. Who counts routes sets `counter`; where experts lie in slots other than their own number, `place`
    says in which."""

    def __init__(self, router: nn.Module, gate: Gate, experts: nn.Module, shared: nn.Module | None = None) -> None:
        super().__init__()
        self.router, self.gate, self.experts, self.shared = router, gate, experts, shared
        self.bias: Tensor | None = None
        self.counter: RouteCounter | None = None
        self.place: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """x [tokens, hidden] -> the same."""
        return self.answer(x, self.router(x))

    def answer(self, x: Tensor, scores: Tensor) -> Tensor:
        """The same of tokens whose scores [tokens, experts] the router has given."""
        experts, weights = route(scores, self.gate, self.bias)
        if self.counter is not None:
            self.counter.note(experts)
        places = experts if self.place is None else self.place(experts)
        y: Tensor = self.experts(x, places, weights)
        return y if self.shared is None else y + self.shared(x)


class SharedExpert(nn.Module):
    """Experts every token visits, as one of their joint width; `gate` (Qwen2-MoE) weighs its answer by a sigmoid."""

    def __init__(self, feedforward: nn.Module, gate: nn.Module | None = None) -> None:
        super().__init__()
        self.feedforward, self.gate = feedforward, gate

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.feedforward(x)
        return y if self.gate is None else y * self.gate(x).sigmoid()
