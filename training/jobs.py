"""What a training job asks for and how it scales. Knows nothing of queues, policies or devices."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from placement.units import Bytes, Seconds, Share

MAX_WORKERS = 100_000
MAX_TABLE_WORKERS = 4096
MAX_SECONDS = 1e10
MAX_NUMBER = 1e12

Workers = Annotated[int, Meta(ge=1, le=MAX_WORKERS)]
Name = Annotated[str, Meta(max_length=256)]


class Amdahl(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="amdahl", tag_field="law"):
    """speedup(w) = w / (1 + serial (w - 1)); serial 0 is linear."""

    serial: Annotated[float, Meta(ge=0, le=1)] = 0.0


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="measured", tag_field="law"):
    """Throughput at some worker counts, in any unit; straight lines between, flat beyond the last."""

    throughput: dict[int, float]

    def __post_init__(self) -> None:
        if not self.throughput:
            raise ValueError("a measured curve needs throughputs such as {1: 10, 2: 18}")
        for workers, value in self.throughput.items():
            if not 1 <= workers <= MAX_TABLE_WORKERS:
                raise ValueError(f"measured at {workers} workers; between 1 and {MAX_TABLE_WORKERS} are supported")
            if not 0 < value <= MAX_NUMBER:
                raise ValueError(f"throughput {value:g} at {workers} workers; it must be above 0 and finite")


class Pollux(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pollux", tag_field="law"):
    """Pollux' goodput model: seconds of an iteration, and the noise scale that says what a larger batch is worth."""

    alpha_grad: float
    beta_grad: float
    alpha_local: float
    beta_local: float
    alpha_node: float
    beta_node: float
    gamma: Annotated[float, Meta(ge=1, le=10)]
    noise_scale: Annotated[float, Meta(ge=0, le=MAX_NUMBER)]

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 <= value <= MAX_NUMBER:
                raise ValueError(f"{name} is {value:g}; it must be 0 or more and finite")
        if self.alpha_grad + self.beta_grad <= 0:
            raise ValueError("alpha_grad and beta_grad are both 0: an iteration must take time")


Curve = Amdahl | Measured | Pollux
LINEAR = Amdahl()


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Total batch sizes: where training starts, the largest in all and on one device."""

    start: Annotated[int, Meta(ge=1, le=2**31)]
    largest: Annotated[int, Meta(ge=1, le=2**31)]
    device_largest: Annotated[int, Meta(ge=1, le=2**31)] = 2**31

    def __post_init__(self) -> None:
        if self.largest < self.start:
            raise ValueError(f"largest batch {self.largest} is below the first, {self.start}")


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One training run: base = `min_gpus` workers it cannot run without, flexible = the rest up to `max_gpus`."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    gpus: Workers
    """Workers it asks for: what it gets where nothing is elastic."""
    arrival: Seconds = Seconds(0)
    duration: Seconds | None = None
    """At `gpus` workers on `kind`; None where nobody knows (live jobs)."""
    min_gpus: Workers | None = None
    max_gpus: Workers | None = None
    user: Name = ""
    group: Name = ""
    model: Name = ""
    tag: Name = ""
    """What recurring jobs share."""
    kind: Name = ""
    """The device kind that `duration` was measured on; the cluster's first where empty."""
    speeds: dict[str, float] = {}
    """Throughput of a worker by device kind, in any unit; it runs on no other kind. Empty: see Fleet."""
    mixed: bool = True
    """Whether its workers may be of several kinds at once."""
    share: Share = Share(1.0)
    """Of a device that each worker needs."""
    memory: Bytes = Bytes(0)
    """Of a device that each worker needs, in bytes."""
    cpus: Annotated[float, Meta(ge=0, le=MAX_WORKERS)] = 0.0
    """For each worker."""
    priority: Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)] = 0.0
    """Higher wins."""
    deadline: Seconds | None = None
    curve: Curve = LINEAR
    spread_speed: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Its speed on more nodes than it needs, against consolidated; below 1 for models with skewed tensors."""
    checkpoint: Seconds = Seconds(0)
    """Of work a preemption or a move costs, for writing the checkpoint."""
    restart: Seconds = Seconds(0)
    """Its workers are held without progress when it starts again."""
    resize: Seconds = Seconds(0)
    """The same, when it grows or shrinks in place."""
    batch: Batch | None = None

    def __post_init__(self) -> None:
        if not self.id.isprintable():
            raise ValueError(f"id {self.id!r} has characters that cannot be printed")
        if not self.fewest <= self.gpus <= self.most:
            raise ValueError(
                f"job {self.id}: min_gpus {self.fewest}, gpus {self.gpus}, max_gpus {self.most}; they must ascend"
            )
        for name in ("arrival", "duration", "deadline", "checkpoint", "restart", "resize"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_SECONDS:
                raise ValueError(f"job {self.id}: {name} {value:g}; expected seconds between 0 and {MAX_SECONDS:g}")
        if self.duration is not None and self.duration <= 0:
            raise ValueError(f"job {self.id}: duration 0; a job takes time")
        if not 0 < self.share <= 1:
            raise ValueError(f"job {self.id}: share {self.share:g}; expected above 0 and at most 1")
        if self.share < 1 and self.elastic:
            raise ValueError(f"job {self.id}: elastic and a part of a device at once; give one of the two")
        for kind, speed in self.speeds.items():
            if not 0 <= speed <= MAX_NUMBER:
                raise ValueError(f"job {self.id}: speed {speed:g} on {kind!r}; expected 0 or more, and finite")
        if self.speeds and not any(self.speeds.values()):
            raise ValueError(f"job {self.id}: every speed is 0; it could run nowhere")
        if self.speeds and self.kind and not self.speeds.get(self.kind):
            raise ValueError(f"job {self.id}: has no speed on {self.kind!r}, which its duration is for")
        if isinstance(self.curve, Pollux) and self.batch is None:
            raise ValueError(f"job {self.id}: a pollux curve needs `batch`: start and largest")

    @property
    def fewest(self) -> int:
        return self.gpus if self.min_gpus is None else self.min_gpus

    @property
    def most(self) -> int:
        return self.gpus if self.max_gpus is None else self.max_gpus

    @property
    def elastic(self) -> bool:
        return self.fewest < self.most

    @property
    def work_s(self) -> float:
        """Seconds of work at `gpus` workers; infinite where nobody knows."""
        return math.inf if self.duration is None else float(self.duration)
