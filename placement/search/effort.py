"""How long a search may go on: so many steps (the same result everywhere), or so many seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placement.search.candidate import Candidate

LEAST_STEPS = 60
"""What one part of a large problem gets in any case: enough to try each class of groups."""


@dataclass
class Effort:
    """A step is one plan tried. `on_progress` is told the share spent and the best score so far."""

    steps: int | None = None
    seconds: float | None = None
    on_progress: Callable[[float, float], None] | None = None
    taken: int = 0
    weighed: list[Candidate] = field(default_factory=list)
    """Those that a search compared at its end; none of one that went cell by cell."""
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        assert (self.steps is None) != (self.seconds is None)

    def spent(self) -> float:
        """Share of the effort used up, from 0 to 1."""
        if self.seconds is not None:
            return min((time.perf_counter() - self.started) / max(self.seconds, 1e-9), 1.0)
        return min(self.taken / max(self.steps or 0, 1), 1.0)

    def part(self, parts: int) -> Effort:
        """The first of `parts` equal parts of what is left (at least some steps each)."""
        if self.seconds is not None:
            left = max(self.seconds - (time.perf_counter() - self.started), 0.0)
            return Effort(seconds=left / parts, on_progress=self.on_progress)
        return Effort(steps=max(((self.steps or 0) - self.taken) // parts, LEAST_STEPS), on_progress=self.on_progress)
