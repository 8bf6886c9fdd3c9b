"""The names of the dispatch rules: docs/simulator.md says what they do."""

from __future__ import annotations

from typing import Literal, get_args

Rule = Literal["deadline", "shortest-queue"]
RULES: tuple[Rule, ...] = get_args(Rule)
