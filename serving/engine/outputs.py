"""What an engine gives back, and what the group's loop needs of one. Knows nothing of how tokens are made."""

from __future__ import annotations

from typing import Protocol

import msgspec

from serving.engine.sequence import FinishReason
from serving.engine.step import Result, Step
from serving.sampling import TokenLogprobs


class Produced(msgspec.Struct, frozen=True, tag="token", omit_defaults=True):
    """One more token of answer `index` of a request; with `finish`, its last. A cancelled answer ends without one."""

    request: str
    index: int
    token: int | None
    finish: FinishReason | None = None
    logprobs: TokenLogprobs | None = None
    cached_prompt: int = 0
    """With the first token: prompt tokens that were in the cache already."""
    text: str | None = None
    """Of an engine that tells no tokens: what it adds to the answer."""


class Answered(msgspec.Struct, frozen=True, tag="answer"):
    """The whole answer of a one-pass request: float32 [inputs, width] as bytes."""

    request: str
    inputs: int
    values: bytes


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A request ended without an answer: `code` is stable, `reason` says it in words."""

    request: str
    code: str
    reason: str


Output = Produced | Answered | Refused


class Engine(Protocol):
    """What the group's loop needs of an engine of either kind."""

    def has_work(self) -> bool:
        """Whether `begin` may find something to run."""

    def begin(self) -> Step | None:
        """The next step, to be run at once; None when nothing can run now."""

    def complete(self, result: Result) -> list[Output]:
        """What a step has produced for its requests."""

    def cancel(self, request: str) -> list[Output]:
        """Forget a request; one in a step that runs ends when that step returns."""

    def is_closed(self, request: str) -> bool:
        """Whether nothing more will come for a request."""

    def clear(self) -> list[str]:
        """Forget everything; returns the requests that were open."""
