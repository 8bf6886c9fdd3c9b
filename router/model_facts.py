"""What the router knows of a model before any request has come: its goals, and what a request of it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from placement.problem import MAX_SLO_S
from placement.tables import Catalogue
from router.request import Request


class Goals(NamedTuple):
    """Seconds from arrival to the first (or only) answer and to the last token, and for each token more; `overhead`
    is taken off."""

    first_s: float
    last_s: float
    token_s: float


@dataclass(frozen=True, slots=True)
class ModelFacts:
    index: int
    generates: bool
    goals: Goals
    overhead_s: float
    input_work_s: float
    """The least device time of a one-pass input."""
    token_work_s: float
    """And of a token."""

    def goals_of(self, request: Request) -> Goals:
        """The request's own, where it has any."""
        if request.slo_s is None and request.tpot_s is None:
            return self.goals
        first_s, last_s, token_s = self.goals
        if request.slo_s is not None:
            first_s = min(float(request.slo_s), MAX_SLO_S) - self.overhead_s
            last_s = first_s if math.isfinite(last_s) else last_s
        if request.tpot_s is not None and request.max_tokens != 1:  # one token has no pace
            token_s = float(request.tpot_s)
        return Goals(first_s, last_s, token_s)

    def room_s(self, fastest_s: float) -> float:
        """How long a request can wait where one-pass requests take so long; prompts differ, and are taken as short."""
        return self.goals.first_s if self.generates else self.goals.first_s - fastest_s

    def work_s(self, request: Request) -> float:
        if not self.generates:
            return self.input_work_s * request.inputs
        return self.token_work_s * (request.tokens + request.max_tokens * request.answers)


def model_facts(catalogue: Catalogue) -> dict[str, ModelFacts]:
    overhead_s = catalogue.problem.overhead
    facts = {}
    for index, model in enumerate(catalogue.problem.models):
        slo = model.slo
        goals = Goals(slo.first_token - overhead_s, slo.end_to_end - overhead_s, min(slo.tpot, MAX_SLO_S))
        input_work_s = float(catalogue.cost[index] * model.weight)
        token_work_s = _token_work_s(catalogue, index) if model.generates else 0.0
        facts[model.name] = ModelFacts(index, model.generates, goals, overhead_s, input_work_s, token_work_s)
    return facts


def _token_work_s(catalogue: Catalogue, model: int) -> float:
    entries = [row[catalogue.profile_of_model[model]] for row in catalogue.entries]
    return min(
        (
            entry.tp * sum(step.prefill_token + step.sequence for step in entry.generation.stages)
            for entry in entries
            if entry is not None and entry.generation is not None
        ),
        default=0.0,
    )
