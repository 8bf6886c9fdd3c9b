"""What the dashboard is told by the rest of the server: plain values, ready to be shown. The controller tells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from serving.dashboard.timeline import Kind
from serving.dashboard.totals import Totals

Plain = dict[str, Any]

MarkKind = Literal["plan", "loan", "death", "refusal", "other"]
"""What a mark on the time line stands for."""


class Holder(NamedTuple):
    """Who has a device now."""

    kind: Kind
    name: str


@dataclass(frozen=True)
class Mark:
    """Something that happened, and what there is to say about it."""

    at: float
    """Unix seconds."""
    kind: MarkKind
    title: str
    facts: Plain


class Source(Protocol):
    def holders(self) -> Mapping[str, Holder]:
        """Of every device, in the cluster's order."""
        ...

    def marks(self, after: float) -> Iterable[Mark]:
        """What happened after a time, oldest first."""
        ...

    def now(self, recent: Mapping[str, Totals]) -> Plain:
        """Everything else that is shown; `recent` is what the last minute brought to each model. Under `models` each
        model has its name, to which its figures are added."""
        ...

    async def jobs(self) -> list[Plain]:
        """The training queue."""
        ...

    async def job(self, name: str) -> Plain | None:
        """One job with its curves; None if there is none."""
        ...

    def experts(self) -> list[Plain]:
        """How often each expert is chosen and how often it is there, of models whose experts are placed."""
        ...
