"""What a model costs: stage latency and memory for each shape and batch size. Knows nothing of traffic or plans."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from placement.units import Bytes

MAX_STAGES = 64
MAX_BATCH = 1024


class Shape(NamedTuple):
    """tp tensor-parallel ways x pp pipeline stages."""

    tp: int
    pp: int

    @property
    def devices(self) -> int:
        return self.tp * self.pp

    def __str__(self) -> str:
        return f"tp{self.tp} x pp{self.pp}"


class StepCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of one engine step on one stage, for P prefill tokens, S decoding sequences, C = sum over the prefill
    chunks of tokens x tokens already cached, K cached tokens of the decoding sequences:
    fixed + max(weights, prefill_token * P + sequence * S) + experts * (1 - (1 - expert_share)^(P + S))
    + prefill_context * C + cached_token * K.
    """

    fixed: float = 0.0
    weights: float = 0.0
    prefill_token: float = 0.0
    prefill_context: float = 0.0
    sequence: float = 0.0
    cached_token: float = 0.0
    experts: float = 0.0
    """Reading all experts once."""
    expert_share: float = 0.0
    """The share of the experts that one token touches; no time, so nothing that scales costs scales it."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            _check_cost(f"generation {field}", getattr(self, field), zero=True)
        if self.expert_share > 1 or (self.experts > 0 and self.expert_share == 0):
            raise ValueError(
                f"generation expert_share is {self.expert_share}; with `experts` it is above 0 and at most 1"
            )
        if self.fixed + max(self.weights + self.experts, self.prefill_token) <= 0:
            raise ValueError("a generation step must take time: give `fixed`, `weights`, `experts` or `prefill_token`")

    def seconds(self, prefill: float, sequences: float, context: float, cached: float) -> float:
        total = self.fixed + max(self.weights, self.prefill_token * prefill + self.sequence * sequences)
        if self.experts > 0:
            total += self.experts * touched_share(self.expert_share, prefill + sequences)
        return total + self.prefill_context * context + self.cached_token * cached

    def times(self, factor: float) -> StepCost:
        """The costs where everything takes `factor` times as long."""
        seconds = {name: factor * getattr(self, name) for name in self.__struct_fields__ if name != "expert_share"}
        return StepCost(**seconds, expert_share=self.expert_share)


def touched_share(expert_share: float, tokens: float) -> float:
    """Of the experts, those that so many tokens touch: all miss one with (1 - expert_share)^tokens."""
    missed: float = (1.0 - expert_share) ** tokens
    return 1.0 - missed


class Generation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a shape generates: the cost of a step and the cache bytes of a token, per stage (bytes per device)."""

    stages: tuple[StepCost, ...]
    kv_bytes_per_token: tuple[float, ...]


class ShapeProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model on one shape: memory per device of each stage, seconds per stage for each batch size."""

    tp: Annotated[int, Meta(ge=1, le=1024)]
    pp: Annotated[int, Meta(ge=1, le=MAX_STAGES)]
    stage_memory: tuple[Bytes, ...]
    stage_latency: dict[int, tuple[float, ...]] = {}
    generation: Generation | None = None
    kind: str | None = None
    """The device kind it holds for; any when absent."""
    span: Literal["node", "cluster"] | None = None
    """Within one node, or across nodes; any when absent."""
    source: Literal["measured", "scaled"] | None = None
    """Measured on devices, or computed and scaled to measurements of other shapes; unknown when absent."""
    wake: float | None = None
    """Seconds until it is awake where it was parked, as measured; by its size and the node's bandwidth when absent."""

    def __post_init__(self) -> None:
        place = f"shape {self.shape}"
        self._check_stages(f"{place}: stage_memory", len(self.stage_memory))
        if not self.stage_latency and self.generation is None:
            raise ValueError(f"{place}: needs stage_latency, generation, or both")
        for batch, latencies in self.stage_latency.items():
            self._check_stages(f"{place}: stage_latency of batch {batch}", len(latencies))
            if not 1 <= batch <= MAX_BATCH:
                raise ValueError(f"{place}: batch size {batch} is not between 1 and {MAX_BATCH}")
            for latency in latencies:
                _check_cost(f"{place}: stage_latency of batch {batch}", latency, zero=False)
        if self.wake is not None:
            _check_cost(f"{place}: wake", self.wake, zero=True)
        if self.stage_latency and 1 not in self.stage_latency:
            raise ValueError(f"{place}: stage_latency has no batch size 1")
        if self.generation is not None:
            self._check_stages(f"{place}: generation stages", len(self.generation.stages))
            self._check_stages(f"{place}: kv_bytes_per_token", len(self.generation.kv_bytes_per_token))
            for size in self.generation.kv_bytes_per_token:
                _check_cost(f"{place}: kv_bytes_per_token", size, zero=False)

    @property
    def shape(self) -> Shape:
        return Shape(self.tp, self.pp)

    @property
    def memory(self) -> int:
        """Bytes on the device that holds most: what a group of equal devices must have room for."""
        return max(self.stage_memory)

    def latency(self, batch: int = 1) -> float:
        """Seconds of one batch through all stages of an idle group."""
        return sum(self.stage_latency[batch])

    def _check_stages(self, what: str, count: int) -> None:
        if count != self.pp:
            raise ValueError(f"{what} has {count} entries; pp is {self.pp}, so {self.pp} are needed")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All shapes a model was measured (or computed) on."""

    shapes: Annotated[tuple[ShapeProfile, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        keys = [(*entry.shape, entry.kind, entry.span) for entry in self.shapes]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"shape {Shape(key[0], key[1])} (kind {key[2]}, span {key[3]}) is given twice")

    def find(self, shape: Shape, kind: str, span: str) -> ShapeProfile | None:
        """The entry for this shape on this device kind and span; an exact one before one for any."""
        fitting = [
            entry
            for entry in self.shapes
            if entry.shape == shape and entry.kind in (None, kind) and entry.span in (None, span)
        ]
        return max(fitting, key=lambda entry: (entry.kind is not None, entry.span is not None), default=None)


def _check_cost(what: str, value: float, *, zero: bool) -> None:
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{what} is {value}; it must be a finite number {'of 0 or more' if zero else 'above 0'}")
