"""What an operator may set of the router."""

from __future__ import annotations

import msgspec

from placement.errors import InputError
from placement.generation.serve import STEP_TOKENS
from placement.rules import RULES, Rule
from placement.simulate import DEFAULT_MAX_BATCH
from placement.simulator import OVERTAKE_SHARE, QUEUE_CAPACITY


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds and the rule's own numbers; the same defaults as the simulator's."""

    queue_requests: int = QUEUE_CAPACITY
    """How many may wait, over all models."""
    queue_tokens: int = 4_000_000
    """How many tokens of prompts and inputs may wait, over all models."""
    running_requests: int = 8192
    """How many generating requests may wait or run."""
    dispatch: Rule = "deadline"
    """Of one-pass requests; generating ones always go by their deadlines."""
    max_batch: int = DEFAULT_MAX_BATCH
    overtake_share: float = OVERTAKE_SHARE
    step_tokens: int = STEP_TOKENS
    """The most tokens of an engine's step, as the groups' engines are set."""
    even_models: bool = True
    """Under overload, models that do better leave room to those that do worse; without it, decisions on requests of one
    class and tenant are the simulator's."""
    prefix_blocks: int = 16384
    """Prompt blocks remembered for each replica."""

    def __post_init__(self) -> None:
        for name in ("queue_requests", "queue_tokens", "running_requests", "max_batch", "step_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"router: {name} is {getattr(self, name)}; it must be at least 1")
        if self.dispatch not in RULES:
            raise InputError(f"router: dispatch is {self.dispatch!r}; it must be one of {', '.join(RULES)}")
        if not 0 <= self.overtake_share <= 1:
            raise InputError(f"router: overtake_share is {self.overtake_share}; it must be from 0 to 1")
