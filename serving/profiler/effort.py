"""How much is measured: more steps and rounds make better profiles and take longer."""

from __future__ import annotations

import msgspec


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """For each stage of each shape of each model."""

    steps: int
    """Drawn steps to fit, beside the corners."""
    held_out: int
    """Steps to judge the fit by."""
    least_rounds: int
    """Each step is run so many times at least..."""
    most_rounds: int
    """... and no more than this..."""
    budget_s: float
    """... and in between until this time is over."""
    most_sequences: int = 64
    """That decode in one step."""
    most_context: int = 2048
    """Tokens of one sequence."""


FULL = Effort(steps=48, held_out=24, least_rounds=5, most_rounds=15, budget_s=10.0)
QUICK = Effort(steps=10, held_out=5, least_rounds=3, most_rounds=5, budget_s=0.3, most_sequences=32, most_context=512)
