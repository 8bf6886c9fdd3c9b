"""What happened, as marks on the dashboard's time line: from the controller's journal, and from refused requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from router import Refusal
from serving.controller.controller import Controller
from serving.controller.journal import Event
from serving.controller.lender import Lender
from serving.controller.views import refusal_view
from serving.dashboard import Mark
from serving.dashboard.source import MarkKind

REFUSALS_EVERY_S = 10.0
"""A model whose requests are refused is marked so often; the count is told."""
_SAME_S = 0.05
"""A decision and its line in the journal are no further apart."""
_TITLES = {
    ("plan", "started"): "Plan started",
    ("plan", "replaced"): "Plan replaced",
    ("plan", "not replaced"): "Plan not replaced",
    ("replan", "found better"): "A better plan was found",
    ("loan", "lent"): "{name} lent",
    ("loan", "returned"): "{name} back",
    ("loan", "given up"): "Loan of {name} given up",
    ("loan", "late"): "{name} is late back",
    ("group", "lost"): "{name} lost",
    ("group", "serving"): "{name} serves",
    ("group", "stopped"): "{name} stopped",
}
_QUIET = {"loaded", "unloaded"}


class Marks:
    def __init__(self, controller: Controller, lender: Lender | None) -> None:
        self._controller, self._lender = controller, lender
        self._refused: dict[str, float] = {}
        """When each model's refusals were told last (time.monotonic)."""
        self._seen = time.monotonic()

    def after(self, at: float) -> Iterator[Mark]:
        """Refusals are told once, whoever asks."""
        found = [self._of(event) for event in self._controller.journal.after(at) if event.what not in _QUIET]
        yield from sorted([*found, *self._refusals()], key=lambda mark: mark.at)

    def _of(self, event: Event) -> Mark:
        title = _TITLES.get((event.subject, event.what), "{name}: {what}").format(name=event.name, what=event.what)
        kind: MarkKind = "other"
        facts: dict[str, Any] = dict(event.facts)
        if event.subject == "loan":
            kind = "loan"
            if event.what == "decided":
                title, more = self._decided(event)
                facts |= more
        elif event.subject in ("plan", "replan"):
            kind = "plan"
        elif event.what == "lost":
            kind = "death"
        return Mark(event.at, kind, title, facts)

    def _decided(self, event: Event) -> tuple[str, dict[str, Any]]:
        decisions = () if self._lender is None else self._lender.decisions
        for one in reversed(decisions):
            if abs(one["at"] - event.at) < _SAME_S:
                title = "Decided to lend" if one["to"] > one["from"] else "Decided to take back"
                return title, {"from": one["from"], "to": one["to"], "weighed": one["rungs"]}
        return f"Decided: {event.name}", {}

    def _refusals(self) -> Iterator[Mark]:
        now = time.monotonic()
        fresh: dict[str, list[Refusal]] = {}
        for one in reversed(self._controller.router.statistics.refusals):
            if one.at <= self._seen:
                break
            if now - self._refused.get(one.model, 0.0) > REFUSALS_EVERY_S and one.reason != "cancelled":
                fresh.setdefault(one.model, []).append(one)
        self._seen = now
        for model, refused in fresh.items():
            self._refused[model] = now
            last = refused[0]
            title = f"{model}: requests not served ({last.reason})"
            facts = refusal_view(last, time.time() - now)
            yield Mark(facts["at"] or time.time(), "refusal", title, facts)
