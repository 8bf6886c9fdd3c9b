"""What happened to plans, groups and models, when and why: for the log, and for whoever asks later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from serving.http import get_log

REMEMBERED = 1000

Subject = Literal["plan", "group", "model", "replan", "loan", "experts", "probes", "nodes", "fronts"]


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    """Unix seconds."""
    subject: Subject
    name: str
    what: str
    facts: dict[str, Any] = field(default_factory=dict)


class Journal:
    """The last events, oldest first."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=REMEMBERED)
        self._log = get_log("controller")

    def note(self, subject: Subject, name: str, what: str, **facts: Any) -> None:
        self._events.append(Event(time.time(), subject, name, what, facts))
        tell = self._log.warning if "reason" in facts else self._log.info
        tell(what, **{subject: name}, **facts)

    def after(self, at: float) -> list[Event]:
        """What came after a time, oldest first."""
        found = []
        for event in reversed(self._events):
            if event.at <= at:
                break
            found.append(event)
        return found[::-1]

    def events(self, *subjects: Subject) -> Iterable[Event]:
        return [event for event in self._events if not subjects or event.subject in subjects]
