"""What the controller, a group's leader and its other devices say to each other. Values only.

Controller and leader: `Order`s and `Report`s. Leader and the other devices of the group: `Command`s and `Reply`s.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from placement.errors import InputError
from placement.profile import StepCost
from serving.engine.outputs import Answered, Produced, Refused
from serving.sampling import SamplingParams
from serving.worker.foreign import EngineConfig


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


MAX_SEQUENCES = 256


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model as a group shall hold it."""

    name: str
    path: str
    precision: str = "fp32"
    graphs: bool = False
    """Record decoding steps as CUDA graphs."""
    kv_bytes: int = 0
    """Cache on each device; a generating model needs some."""
    step_tokens: int = 512
    max_sequences: int = MAX_SEQUENCES
    """In a step."""
    tpot_s: float | None = None
    """Seconds between two tokens of a sequence that prompts beside it must leave; needs `step_costs`."""
    step_costs: tuple[StepCost, ...] = ()
    """What a step costs each stage (the profile's `generation.stages`), for `tpot_s`."""
    experts: list[list[list[int]]] | None = None
    """[layer with experts][device of a stage][expert ids]: who has which experts whole; without it, every device has a
    slice of each."""
    engine: EngineConfig | None = None
    """Whose engine computes it; our own when absent."""

    def __post_init__(self) -> None:
        if self.tpot_s is not None and not self.tpot_s > 0:
            raise InputError(f"model {self.name!r}: tpot_s is {self.tpot_s:g}; it must be above 0")


# What the controller orders


class Load(_Message, frozen=True):
    """Read a model onto the group's devices. Like every order with an id, it is answered by one Done."""

    id: int
    model: ModelSpec


class Unload(_Message, frozen=True):
    """Give a model up; requests still open are refused."""

    id: int
    model: str


class Suspend(_Message, frozen=True):
    """Free the devices of a model, keeping its weights in host memory; open requests are refused."""

    id: int
    model: str


class Resume(_Message, frozen=True):
    id: int
    model: str


class PlaceExperts(_Message, frozen=True):
    """Bring a model's experts to other places (as ModelSpec.experts) while it serves; done when all steps use them."""

    id: int
    model: str
    experts: list[list[list[int]]]


class TakeRoutes(_Message, frozen=True):
    """How often each expert of a model was chosen since this was last asked: the fact `counts`, [layer][expert], and of
    the last large steps `steps`, [layer][step][expert]."""

    id: int
    model: str


class Drain(_Message, frozen=True):
    """Take no more requests; done when none is open."""

    id: int


class Echo(_Message, frozen=True):
    """Done when the main thread of every device has come to it: none is stuck. Nothing is computed."""

    id: int


class Stop(_Message, frozen=True):
    """End the group's processes at once."""


class Generate(_Message, frozen=True):
    """Answered by Produced for each token of each answer, or by one Refused."""

    request: str
    model: str
    prompt: list[int]
    params: SamplingParams


class Infer(_Message, frozen=True):
    """One-pass inputs; answered by one Answered or Refused. kinds: 1 for tokens of a second sentence."""

    request: str
    model: str
    inputs: list[list[int]]
    kinds: list[list[int]] | None = None


class Cancel(_Message, frozen=True):
    request: str


# What the leader reports


class Hello(_Message, frozen=True):
    """All devices of the group are there."""

    group: str
    tp: int
    pp: int
    pids: list[int]
    kind: Literal["real", "paced", "emulated"] = "real"


class Done(_Message, frozen=True):
    """An order was carried out, or not: `error` says in one line why."""

    id: int
    error: str = ""
    facts: dict[str, Any] = {}


class ModelState(msgspec.Struct, frozen=True):
    """What a model has to do at the moment."""

    running: int
    waiting: int
    blocks_used: int = 0
    busy_s: tuple[float, ...] = ()
    """How long each stage has computed for it, in all."""


class Outputs(_Message, frozen=True):
    """What one step produced, and how its model stands after it."""

    model: str
    outputs: list[Produced | Answered | Refused]
    state: ModelState | None = None


class Ended(_Message, frozen=True):
    """The group is lost: all of its requests have failed for this reason."""

    reason: str


# Between the leader and the other devices


class RunStep(_Message, frozen=True):
    """One engine step (engine.step), encoded once for all devices."""

    step: bytes


class LoadShard(_Message, frozen=True):
    """Load with the number of cache blocks, which must be the same everywhere."""

    id: int
    model: ModelSpec
    blocks: int


class SwitchExperts(_Message, frozen=True):
    """All devices are ready for PlaceExperts: the next step uses the new places. Without `go`, forget them."""

    model: str
    go: bool


class Leave(_Message, frozen=True):
    """End this process."""


class Joined(_Message, frozen=True):
    """A device is ready; its first message."""

    rank: int
    pid: int


class StageDone(_Message, frozen=True):
    """From the first device of a stage behind the leader's: a step is through it. `result`: from the last stage, a
    Result (engine.step)."""

    model: str
    stage: int
    busy_s: float
    result: bytes = b""


class Broken(_Message, frozen=True):
    """A device cannot go on."""

    reason: str


Order = Load | Unload | Suspend | Resume | PlaceExperts | TakeRoutes | Drain | Echo | Stop | Generate | Infer | Cancel
Report = Hello | Done | Outputs | Ended
Command = RunStep | LoadShard | Unload | Suspend | Resume | PlaceExperts | SwitchExperts | TakeRoutes | Echo | Leave
Reply = Joined | Done | StageDone | Broken
