"""What the profiler and its measuring processes say to each other. Values only."""

from __future__ import annotations

import msgspec

from serving.profiler.points import Point
from serving.worker.settings import LinkSettings

PATIENT = LinkSettings(ping_s=1.0, life_s=120.0)
"""Compiling keeps even the mail's thread from speaking; a process that is gone is seen by other ways."""


class MeasurerDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a measuring process is told at its start."""

    number: int
    device: str
    """cpu:N or cuda:N"""
    control: str
    """Address (link) at which the profiler waits."""

    @property
    def torch_device(self) -> str:
        """A process sees its own GPU alone, as the first."""
        return "cpu" if self.device.startswith("cpu") else "cuda:0"


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


# What the profiler orders; each is answered by one report


class Join(_Message, frozen=True):
    """Meet the other devices of a stage that is split `tp` ways."""

    tp: int
    rank: int
    rendezvous: str
    """A directory of this stage alone."""


class LoadStage(_Message, frozen=True):
    """Hold one stage's shard in the place of any other."""

    path: str
    precision: str
    tp: int
    pp: int
    stage: int
    memory_bytes: int
    """What it may use on its device, its cache included."""
    most_tokens: int
    """That the cache must hold, or a one-pass model's largest batch has."""
    graphs: bool = False


class TimeSteps(_Message, frozen=True):
    """Run the points in rounds, each in another order, after one round that does not count. Where a stage is split,
    this goes to its first device, and Follow to the others.
    """

    points: list[Point]
    least_rounds: int
    most_rounds: int
    budget_s: float
    """No round begins later than this, once there are the least."""


class Follow(_Message, frozen=True):
    """Run what the first device of the stage says, until it is done."""


class Leave(_Message, frozen=True):
    pass


# What the measuring process reports


class Ready(_Message, frozen=True):
    number: int


class Done(_Message, frozen=True):
    pass


class Loaded(_Message, frozen=True):
    """Of one device of the stage. Where it does not fit its memory, nothing was loaded."""

    fits: bool
    weight_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: int
    """0 for a one-pass model."""
    cache_tokens: int


class Timed(_Message, frozen=True):
    seconds: list[list[float]]
    """[rounds][points]"""


class Failed(_Message, frozen=True):
    reason: str
    is_input: bool
    """Something is wrong with the model's files rather than with us."""


MeasureOrder = Join | LoadStage | TimeSteps | Follow | Leave
MeasureReport = Ready | Done | Loaded | Timed | Failed


# Between the devices of a split stage


class Run(_Message, frozen=True):
    """A step (engine.step), as the leader of a group sends it."""

    step: bytes


class End(_Message, frozen=True):
    pass


StageWord = Run | End
