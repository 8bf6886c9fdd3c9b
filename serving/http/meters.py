"""What is counted about requests, per model: plain numbers that cost nearly nothing to keep.

Whether requests were in time is the router's to count.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from router.request import Request
from serving.http.families import SECONDS, TOKEN_SECONDS, Histogram

clock = time.perf_counter


@dataclass
class ModelMeters:
    ttft: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    token_latency: Histogram = field(default_factory=lambda: Histogram(TOKEN_SECONDS))
    latency: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    queue_time: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    waiting: int = 0
    running: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """By finish reason."""
    unserved: Counter[str] = field(default_factory=Counter)
    """By the reason the router gives."""


class Meters:
    """Of all models, and of the HTTP exchanges."""

    def __init__(self, models: Iterable[str]) -> None:
        self.models = {name: ModelMeters() for name in models}
        self.answers: Counter[tuple[str, int]] = Counter()
        """By route and status."""
        self.open = 0


class Track:
    """One request on its way: waiting for a group, running, ended."""

    __slots__ = ("_has_token", "_last_s", "_meters", "_started_s", "_state")

    def __init__(self, meters: ModelMeters, request: Request) -> None:
        self._meters = meters
        self._started_s = clock()
        self._has_token = False
        self._last_s = [0.0] * request.answers
        """When each answer had its last token; 0 before the first."""
        self._state = 0
        meters.waiting += 1
        meters.prompt_tokens += request.tokens

    def run(self) -> None:
        """A group was chosen; again when the first one was lost."""
        if self._state == 0:
            meters = self._meters
            meters.queue_time.observe(clock() - self._started_s)
            meters.waiting -= 1
            meters.running += 1
            self._state = 1

    def token(self, answer: int) -> None:
        now, last_s = clock(), self._last_s[answer]
        if not self._has_token:
            self._has_token = True
            self._meters.ttft.observe(now - self._started_s)
        if last_s:
            self._meters.token_latency.observe(now - last_s)
        self._last_s[answer] = now
        self._meters.output_tokens += 1

    def finish(self, reasons: Iterable[str]) -> None:
        self._meters.latency.observe(clock() - self._started_s)
        for reason in reasons:
            self._meters.finished[reason] += 1

    def fail(self, reason: str) -> None:
        self._meters.unserved[reason] += 1

    def close(self) -> None:
        if self._state == 0:
            self._meters.waiting -= 1
        elif self._state == 1:
            self._meters.running -= 1
        self._state = 2
