"""What a worker process is told at its start: its place in its group, and where to find the others."""

from __future__ import annotations

from typing import Literal

import msgspec

from placement.errors import InputError
from placement.files import convert
from serving.parallel import Backend, Layout


class WorkerDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device of one group. Rank 0 leads: the others connect to `leader`, the controller to `control`."""

    group: str
    device: str
    """cpu:N or cuda:N"""
    tp: int
    pp: int
    rank: int
    leader: str
    """Address (link) at which the leader waits for the other devices."""
    control: str
    """Address (link) at which the leader waits for its controller."""
    rendezvous: str
    """Where devices meet to connect their tensors (parallel.connect)."""
    backend: Backend = "shared"
    secret: str | None = None
    """For links over TCP."""
    pace: float = 1.0
    """A paced worker's every step takes this many times its own time."""
    devices: tuple[str, ...] = ()
    """All of the group's, for a leader that has no other workers beside it."""
    connect_s: float = 60.0
    life_s: float = 2.0
    """A device or controller that gives no sign of life for so long is gone."""

    def __post_init__(self) -> None:
        if not 1.0 <= self.pace <= 1000.0:
            raise InputError(f"pace is {self.pace:g}; it must be from 1 to 1000")

    @property
    def layout(self) -> Layout:
        return Layout(self.tp, self.pp, self.rank)

    @property
    def torch_device(self) -> str:
        """A process sees its own GPU alone, as the first."""
        return "cpu" if self.device.startswith("cpu") else "cuda:0"

    @property
    def kind(self) -> Literal["paced", "real"]:
        return "paced" if self.pace > 1 else "real"


def parse_document(data: object) -> WorkerDocument:
    return convert(data, WorkerDocument, "worker document")
