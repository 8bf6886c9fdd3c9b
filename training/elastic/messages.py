"""What the coordinator of a job and its workers tell each other."""

from __future__ import annotations

import msgspec

from serving.parallel import Backend


class Order(msgspec.Struct, frozen=True, tag=True):
    """To a worker."""


class Go(Order, frozen=True):
    """Train together, from the step that the `source` has; those `behind` get its state first."""

    generation: int
    rank: int
    size: int
    source: int
    behind: tuple[int, ...]
    meeting: str
    """Where they meet: a directory of their machine, or the address of a store that all reach."""
    meet_s: float
    """How long they wait for each other there."""
    backend: Backend = "shared"
    saved: int = -1
    """The steps of the newest checkpoint: a source that has fewer reads it first."""


class Pause(Order, frozen=True):
    """Stop at the end of a step, all together, and wait for orders."""

    generation: int


class Move(Order, frozen=True):
    """To one that is parked: its device is another from now on."""

    device: str


class Save(Order, frozen=True):
    """To one that is parked: write a checkpoint beside, in no hurry, and tell."""


class Leave(Order, frozen=True):
    """Stop at the end of the step, and end."""


class Finish(Order, frozen=True):
    """Stop at the end of the step, write a checkpoint, and the model if all steps are done, and end."""


class Yield(Order, frozen=True):
    """To one that finishes: its device is another's; go on with it beside, in no hurry."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """From a worker."""


class Ready(Report, frozen=True):
    """The first: it could train, and has no state yet."""

    name: str


class Squared(msgspec.Struct, frozen=True, array_like=True):
    """Squared lengths of gradients: of a micro-batch, on average, and of the whole step."""

    part: float
    whole: float


class Done(Report, frozen=True):
    """A step is made."""

    generation: int
    step: int
    """How many are, with it."""
    loss: float
    squared: Squared


class Parted(Report, frozen=True):
    """It no longer trains: all paused, a worker is lost, or all steps are done."""

    generation: int
    step: int
    leaves: bool
    """It was told to by others than the coordinator."""


class Saved(Report, frozen=True):
    """It has been asked to write a checkpoint of this step, and has (or has told the log why it cannot)."""

    step: int


class Finished(Report, frozen=True):
    """Its checkpoint is on the disk, and the model too if all steps are done."""

    step: int


Orders = Go | Pause | Move | Save | Leave | Finish | Yield
Reports = Ready | Done | Parted | Saved | Finished
