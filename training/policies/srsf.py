"""Least remaining service (time x GPUs) first, preemptive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from training.arrays import Floats
from training.ordering import Ordering
from training.view import Information, View


@dataclass(frozen=True)
class Srsf(Ordering):
    name: ClassVar[str] = "srsf"
    information: Information = "oracle"

    def key(self, view: View) -> Floats:
        return view.remaining_s * view.gpus
