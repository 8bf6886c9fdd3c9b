"""Shortest job first by its whole running time, preemptive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from training.arrays import Floats
from training.ordering import Ordering
from training.view import Information, View


@dataclass(frozen=True)
class Sjf(Ordering):
    name: ClassVar[str] = "sjf"
    information: Information = "oracle"

    def key(self, view: View) -> Floats:
        return view.estimate_s
