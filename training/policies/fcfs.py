"""First come, first served; nobody is preempted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from training.arrays import Floats
from training.ordering import Ordering
from training.view import View


@dataclass(frozen=True)
class Fcfs(Ordering):
    name: ClassVar[str] = "fcfs"
    preemptive: ClassVar[bool] = False

    def key(self, view: View) -> Floats:
        return view.submit
