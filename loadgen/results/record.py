"""One request of a load test: when it was due, went out and was answered. Times in seconds since the test began."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

NAN = float("nan")
NOT_SENT = "not-sent"
"""The generator had too many requests open."""

REFUSAL_STATUSES = (429, 503)
REFUSALS = ("refused", "expired", "no-replica", "queue-full")
"""Codes that mean the same when they come after a stream has begun."""
FAILURES = ("failed", "unavailable", "internal", "cancelled")
"""Codes of what broke or ended it, whatever HTTP status they come with."""


@dataclass(slots=True)
class Record:
    """NaN: it did not happen, or was not seen. Latencies count from `due_s`, never from `sent_s`."""

    row: int
    model: int
    stage: int
    due_s: float
    sent_s: float = NAN
    first_s: float = NAN
    """First token; only of streamed answers."""
    last_s: float = NAN
    done_s: float = NAN
    status: int = 0
    """HTTP's; 0 when no answer came."""
    reason: str = ""
    """Why it was not answered: the server's code, or ours. Empty: it was."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    gaps_s: array[float] = field(default_factory=lambda: array("d"))
    """Between one piece of the answer and the next."""

    @property
    def is_answered(self) -> bool:
        return not self.reason

    @property
    def is_refused(self) -> bool:
        """By the server's code where it is one that is known, else by HTTP's status."""
        if self.reason in REFUSALS:
            return True
        return bool(self.reason) and self.reason not in FAILURES and self.status in REFUSAL_STATUSES

    @property
    def lag_s(self) -> float:
        return self.sent_s - self.due_s

    @property
    def latency_s(self) -> float:
        """Of an answered request."""
        return NAN if self.reason else self.done_s - self.due_s

    @property
    def ttft_s(self) -> float:
        """Of a streamed answer."""
        return NAN if self.reason else self.first_s - self.due_s

    @property
    def tpot_s(self) -> float:
        """Of a streamed answer of two tokens or more."""
        if self.reason or self.output_tokens < 2:
            return NAN
        return (self.last_s - self.first_s) / (self.output_tokens - 1)
