"""What the router is asked, and how it says no. Values only: the router never looks into a prompt's meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

Priority = Literal["interactive", "standard", "batch"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)

Reason = Literal["refused", "expired", "no-replica", "queue-full", "cancelled", "failed"]


class Request(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """One request as the router weighs it."""

    id: str
    model: str
    tokens: int
    """Of its prompt, or of all its one-pass inputs."""
    inputs: int = 1
    """One-pass inputs it brings."""
    max_tokens: int = 0
    """Of each answer; 0 for a one-pass request."""
    answers: int = 1
    prompt: Sequence[int] = ()
    """The prompt's tokens, to find the replica that has its beginning in the cache."""
    slo_s: float | None = None
    """End to end, or to the first token of one that generates; its model's when None."""
    tpot_s: float | None = None
    tenant: str = ""
    priority: Priority = "standard"


class NotServed(Exception):  # noqa: N818  (it says what happened)
    """A request ended without an answer, or in the middle of one: the reason is stable, the text says it in words."""

    def __init__(self, reason: Reason, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s
        """When asking again may help, by the queue's own reckoning."""
