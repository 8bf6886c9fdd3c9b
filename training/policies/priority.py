"""Highest priority first, preemptive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from training.arrays import Floats
from training.ordering import Ordering
from training.view import View


@dataclass(frozen=True)
class Priority(Ordering):
    name: ClassVar[str] = "priority"

    def key(self, view: View) -> Floats:
        return -view.priority
