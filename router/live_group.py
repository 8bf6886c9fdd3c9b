"""A group as the router is told of it, and what the router knows of it beside."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from placement.clocks import NOBODY, Floats
from placement.plan import Group
from router.prefixes import PrefixMemory

G = TypeVar("G")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGroup(Generic[G]):
    """What the controller says: a group of the plan, the object that runs requests on it, and which of its models are
    loaded. One that drains takes no new requests."""

    name: str
    spec: Group
    handle: G
    ready: Collection[str] = ()
    draining: bool = False
    back_at: float = 0.0
    """It takes requests from this time of the router's clock on; what is handed to it before waits there."""


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that began together."""

    model: int
    start: float
    end: float
    """When its last stage is expected to be done."""
    guessed_s: float = 0.0
    """By how much `end` was put off while nobody knew more than that it, or one before it, is overdue."""
    open: int = 0
    """Its requests that have not ended."""
    is_observed: bool = False


@dataclass(slots=True, eq=False)
class Member(Generic[G]):
    """A group in use, or one that was: requests that run there keep it."""

    name: str
    spec: Group
    handle: G
    ready: set[str] = field(default_factory=set)
    draining: bool = False
    back_at: float = 0.0
    index: int = -1
    """Its place in the tables; -1 when it is not in them."""
    lost: str = ""
    """Why it is gone."""
    batches: deque[Batch] = field(default_factory=deque)
    factor: dict[int, float] = field(default_factory=dict)
    """How much longer than profiled each model takes here."""
    corrected_at: dict[int, float] = field(default_factory=dict)
    prefixes: dict[int, PrefixMemory] = field(default_factory=dict)
    free: Floats | None = None
    """Its stage clocks while it is in no table."""
    awake: int = NOBODY
    running: int = 0
    """Requests there now."""
    started: int = 0
    """And ever."""

    def usable(self) -> Group | None:
        """The group with the models that can take requests; None if there is none."""
        if self.lost or self.draining:
            return None
        return _only(self.spec, self.ready)


def _only(spec: Group, ready: Collection[str]) -> Group | None:
    models = tuple(name for name in spec.models if name in ready)
    parked = tuple(name for name in spec.parked if name in ready)
    if not models and not parked:
        return None
    kv_bytes = {name: size for name, size in spec.kv_bytes.items() if name in models + parked}
    return Group(spec.devices, spec.tp, spec.pp, models, kv_bytes, {}, parked)
