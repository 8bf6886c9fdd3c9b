"""Fewest GPUs first, preemptive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from training.arrays import Floats
from training.ordering import Ordering
from training.view import View


@dataclass(frozen=True)
class FewestGpus(Ordering):
    name: ClassVar[str] = "fewest-gpus"

    def key(self, view: View) -> Floats:
        return view.gpus.astype(np.float64)
