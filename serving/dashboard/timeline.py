"""Who had which device since when: the changes of the last while, and no more of a device than is bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal["group", "job", "idle", "dead"]
"""A serving group, a training job, nobody, or a group whose processes are lost."""
MOST_CHANGES = 400
"""Of one device."""


class Change(NamedTuple):
    at: float
    """Unix seconds."""
    device: str
    kind: Kind
    name: str
    """Of the group or the job."""


class Timeline:
    def __init__(self, devices: Iterable[str]) -> None:
        self._changes: dict[str, deque[Change]] = {name: deque(maxlen=MOST_CHANGES) for name in devices}
        self._news: deque[Change] = deque(maxlen=MOST_CHANGES * 4)

    def note(self, at: float, device: str, kind: Kind, name: str) -> None:
        """What is so already is not noted again."""
        changes = self._changes.setdefault(device, deque(maxlen=MOST_CHANGES))  # a node may have joined
        if changes and (changes[-1].kind, changes[-1].name) == (kind, name):
            return
        change = Change(at, device, kind, name)
        changes.append(change)
        self._news.append(change)

    def last(self, device: str) -> Change | None:
        changes = self._changes.get(device)
        return changes[-1] if changes else None

    def since(self, at: float) -> Iterator[Change]:
        """Those that say who had which device from then on: of each device also the last one before."""
        for changes in self._changes.values():
            first = 0
            for place, change in enumerate(changes):
                if change.at <= at:
                    first = place
            yield from list(changes)[first:]

    def take_news(self) -> list[Change]:
        """What was noted since the last time this was asked."""
        news = list(self._news)
        self._news.clear()
        return news
