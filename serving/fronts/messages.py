"""What a front end and the desk of the process that routes say to each other. Values only."""

from __future__ import annotations

from typing import Literal

import msgspec

from router.request import Reason, Request
from serving.engine.outputs import Answered, Produced
from serving.worker.messages import Generate, Infer


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


NoKind = Literal["not-served", "failed", "lost", "input", "internal"]


class Join(_Message, frozen=True):
    """The first thing that a front end says: what it is, and the models whose text it reads."""

    version: str
    models: list[str]


class Ask(_Message, frozen=True):
    """A request as the router weighs it (its prompt left out), and what its group is to do."""

    request: Request
    work: Generate | Infer


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


class Pass(_Message, frozen=True):
    """An HTTP request that is not a front end's to answer; `Body`s follow it."""

    request: str
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]


class Begin(_Message, frozen=True):
    """The answer to what was passed on; `Body`s follow it."""

    request: str
    status: int
    headers: list[tuple[bytes, bytes]]


class Body(_Message, frozen=True):
    """Of a request or an answer. That of an answer is acknowledged by a `Next` while there is more."""

    request: str
    part: bytes
    is_last: bool


class Next(_Message, frozen=True):
    """The client has taken a part."""

    request: str


class Came(_Message, frozen=True):
    outputs: list[Produced | Answered]


class No(_Message, frozen=True):
    """A request ends without an answer, or in the middle of one."""

    request: str
    kind: NoKind
    code: Reason | str
    message: str
    retry_after_s: float | None = None


ToDesk = Join | Ask | Close | Counts | Pass | Body | Next
ToFront = Came | No | Begin | Body
