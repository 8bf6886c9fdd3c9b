"""What a front end and the desk of the process that routes say to each other. Values only."""

from __future__ import annotations

from typing import Literal

import msgspec

from router.request import Priority, Reason
from serving.engine.outputs import Answered, Produced
from serving.worker.messages import Generate, Infer


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


NoKind = Literal["not-served", "failed", "lost", "input", "internal"]


class Ask(_Message, frozen=True, kw_only=True):
    """A request as the router weighs it, and what its group is to do."""

    work: Generate | Infer
    tokens: int
    inputs: int
    max_tokens: int
    answers: int
    slo_s: float | None
    tpot_s: float | None
    tenant: str
    priority: Priority


class Close(_Message, frozen=True):
    """Nothing more is wanted of a request: it has all it wants (`answered`), or was given up."""

    request: str
    answered: bool


class ModelCounts(msgspec.Struct, frozen=True, array_like=True):
    """What a front end has counted of a model; histograms as counts by bucket, and their sum."""

    ttft: tuple[list[int], float]
    token_latency: tuple[list[int], float]
    latency: tuple[list[int], float]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finished: dict[str, int]
    unserved: dict[str, int]


class Counts(_Message, frozen=True):
    """All that a front end has counted since it began."""

    models: dict[str, ModelCounts]
    answers: list[tuple[str, int, int]]
    """Route, status, how many."""
    open: int


class Came(_Message, frozen=True):
    outputs: list[Produced | Answered]


class No(_Message, frozen=True):
    """A request ends without an answer, or in the middle of one."""

    request: str
    kind: NoKind
    code: Reason | str
    message: str
    retry_after_s: float | None = None


ToDesk = Ask | Close | Counts
ToFront = Came | No
