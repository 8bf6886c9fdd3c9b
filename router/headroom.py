"""Who must leave room to others while there is not room for all. docs/router.md has it.

Refusing early what would be displaced later keeps promises; the queue's length is what favours the patient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

PRESSURE_S = 1.0
"""So long after a request was refused or displaced others, requests are taken to be more than there is room for."""

CLASS_SHARE = 0.45
"""Of the time it can wait, that a request must keep for each class above it, where these are turned away."""

TURNED_AWAY = 0.3
"""All of that, once such a share of a higher class found no room of its own; else in proportion."""

MODEL_SHARE = 0.35
"""Of the time it can wait, that a request must keep at least for a model that is worse off than its own."""

AHEAD = 1.25
"""So many times as large a share of its requests must be admitted as of the other's."""

HALF_LIFE_S = 5.0
LEAST_COUNTED = 8.0


class Recent:
    """How many came of late, and how many of them found room."""

    __slots__ = ("_at", "arrived", "found")

    def __init__(self) -> None:
        self.arrived = self.found = self._at = 0.0

    def count(self, found_room: bool, now: float) -> None:
        passed = now - self._at
        if passed > 0:
            kept = 0.5 ** (passed / HALF_LIFE_S)
            self.arrived *= kept
            self.found *= kept
            self._at = now
        self.arrived += 1
        self.found += found_room

    @property
    def share(self) -> float:
        return self.found / self.arrived if self.arrived >= LEAST_COUNTED else 1.0


class Headroom:
    def __init__(self, models: int, classes: int, evens_models: bool) -> None:
        self._evens_models = evens_models
        self.pressed_until = -math.inf
        self._of_class = [Recent() for _ in range(classes)]
        self._of_model = [Recent() for _ in range(models)]

    def count(self, model: int, rank: int, was_admitted: bool, displaced: bool, now: float) -> None:
        """One has come; `displaced`: it was given the room of others."""
        self._of_model[model].count(was_admitted, now)
        self._of_class[rank].count(was_admitted and not displaced, now)
        if displaced or not was_admitted:
            self.pressed_until = now + PRESSURE_S

    def spare_s(self, model: int, rank: int, shares: Iterable[int], room_s: list[float]) -> float:
        """How much of its time a newcomer must have left, under pressure: `room_s` is how long each model's requests
        can wait, `shares` the models on the same groups."""
        turned_away = max((1 - above.share for above in self._of_class[:rank]), default=0.0)
        spare_s = CLASS_SHARE * rank * min(turned_away / TURNED_AWAY, 1.0) * room_s[model]
        if self._evens_models:
            worst = min(shares, key=lambda other: self._of_model[other].share)
            if self._of_model[model].share > AHEAD * self._of_model[worst].share:
                spare_s = max(spare_s, MODEL_SHARE * room_s[model], room_s[model] - room_s[worst])
        return spare_s
