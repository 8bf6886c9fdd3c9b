"""Where one device stands in its group: rank = stage * tp + tp_rank."""

from __future__ import annotations

from dataclasses import dataclass

from placement.errors import InputError

MOST_WAYS = 64
"""Devices in one stage; every pair of them is connected."""


@dataclass(frozen=True)
class Layout:
    tp: int
    pp: int
    rank: int

    def __post_init__(self) -> None:
        if not (1 <= self.tp <= MOST_WAYS and self.pp >= 1):
            raise InputError(f"shape ({self.tp}, {self.pp}): tp must be 1 to {MOST_WAYS}, pp at least 1")
        if not 0 <= self.rank < self.devices:
            raise InputError(f"rank {self.rank}: a group of shape ({self.tp}, {self.pp}) has 0 to {self.devices - 1}")

    @property
    def devices(self) -> int:
        return self.tp * self.pp

    @property
    def stage(self) -> int:
        return self.rank // self.tp

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp

    @property
    def stage_ranks(self) -> range:
        """The devices of this stage."""
        return range(self.stage * self.tp, (self.stage + 1) * self.tp)

    @property
    def previous(self) -> int | None:
        """The device of the stage before that sends to this one."""
        return self.rank - self.tp if self.stage > 0 else None

    @property
    def next(self) -> int | None:
        return self.rank + self.tp if self.stage < self.pp - 1 else None
