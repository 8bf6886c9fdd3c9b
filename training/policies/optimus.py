"""Optimus: every job one worker (its base), then each next worker where it lowers the remaining time most.

The remaining time is predicted (from the loss curve or any other way, not here), the speed is the
job's scaling curve. Jobs that do not get their base wait, those with the least work left first in line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from training.growing import bases, grown
from training.view import Allocation, Information, View


@dataclass(frozen=True)
class Optimus:
    name: ClassVar[str] = "optimus"
    information: Information = "predicted"
    round_s: float = 0.0
    preemptive: bool = True

    def allocate(self, view: View) -> Allocation:
        workers = bases(view, view.remaining_s * view.gpus, self.preemptive)
        return Allocation(grown(view, workers, view.remaining_s))
