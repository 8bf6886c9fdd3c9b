"""What a policy of expert placement is given, and the one thing it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from moe.arrays import Floats
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from placement.errors import InputError

MOST_LOAD = 1e18


@dataclass(frozen=True)
class Task:
    load: Floats
    """[layers, experts]: what is expected."""
    pool: Pool
    history: Floats | None = None
    """[batches, layers, experts]: loads of recent batches, for a policy that looks at how they differ."""
    previous: ExpertPlacement | None = None
    groups: int | None = None
    """Of experts: all replicas of a group stay on one node."""

    def __post_init__(self) -> None:
        check_load(self.load)
        self.pool.check_room(self.load.shape[1])
        if self.history is not None and self.history.shape[1:] != self.load.shape:
            raise InputError(f"history of shape {self.history.shape[1:]} for a load of shape {self.load.shape}")
        if self.previous is not None and (self.previous.layers, self.previous.experts) != self.load.shape:
            found = f"{self.previous.layers} layers of {self.previous.experts} experts"
            raise InputError(
                f"the previous placement has {found}, the load {self.load.shape[0]} of {self.load.shape[1]}"
            )

    @property
    def previous_here(self) -> ExpertPlacement | None:
        """The previous placement on this pool's slots; None if there is none or it does not fit."""
        return None if self.previous is None else self.previous.fitted(self.pool)


class Policy(Protocol):
    def place(self, task: Task) -> ExpertPlacement:
        """Every expert of every layer on a device, within the slots."""


def check_load(load: Floats) -> None:
    if load.ndim != 2 or 0 in load.shape:
        raise InputError(f"load has the shape {load.shape}; expected [layers, experts]")
    if not bool(np.all(np.isfinite(load))) or bool(np.any(load < 0)):
        raise InputError("load has entries that are negative or not numbers")
    if bool(np.any(load > MOST_LOAD)):
        raise InputError(f"load has entries above {MOST_LOAD:g}")
