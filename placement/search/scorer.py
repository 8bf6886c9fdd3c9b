"""How good a candidate is: simulated on several draws of the traffic, judged as the problem's objective says."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.dispatch import Floats, Ints
from placement.problem import Problem
from placement.search.candidate import Candidate, Space
from placement.simulator import Rule, count_served
from placement.workload import Workload

WORST_MODEL_WORTH = 0.05
"""How much the worst model's attainment counts beside the overall one, so that ties do not starve a small model."""


class Score(NamedTuple):
    """Larger is better, first field first."""

    kept: float
    """Minus the weighted shortfall of the models below their targets; 0 when judged by overall attainment."""
    attainment: float

    @property
    def value(self) -> float:
        return 1000 * self.kept + self.attainment


class Scorer:
    """Scores candidates on a fixed set of draws, counting simulations."""

    def __init__(self, space: Space, draws: list[Workload], rule: Rule, max_batch: int) -> None:
        self.space = space
        self.draws = draws
        self.rule: Rule = rule
        self.max_batch = max_batch
        self.evaluations = 0
        models = len(space.problem.models)
        self.counts: Ints = np.stack([draw.counts(models) for draw in draws])
        self._scores: dict[tuple[object, ...], tuple[Score, Floats]] = {}

    def score(self, candidate: Candidate) -> Score:
        return self._measure(candidate)[0]

    def missed(self, candidate: Candidate) -> Floats:
        """[models] requests missed, mean over the draws."""
        return self._measure(candidate)[1]

    def served(self, candidate: Candidate) -> Ints:
        """[draws, models]."""
        tables = self.space.tables(candidate)
        stages = self.space.catalogue.stages
        return np.stack(
            [count_served(tables, stages, draw, self.rule, self.max_batch) for draw in self.draws]
        )

    def _measure(self, candidate: Candidate) -> tuple[Score, Floats]:
        key = candidate.key
        if key not in self._scores:
            self.evaluations += 1
            served = self.served(candidate)
            self._scores[key] = (
                judge(self.space.problem, served, self.counts),
                (self.counts - served).mean(axis=0),
            )
        return self._scores[key]


def judge(problem: Problem, met: Ints, counts: Ints) -> Score:
    """Score of requests met, of counts [draws, models]."""
    total_met, total = met.sum(axis=0), counts.sum(axis=0)
    asked = total > 0
    attainment = total_met.sum() / max(total.sum(), 1)
    each = total_met[asked] / total[asked]
    worst = float(each.min()) if asked.any() else 1.0
    value = (attainment + WORST_MODEL_WORTH * worst) / (1 + WORST_MODEL_WORTH)
    if problem.objective == "overall":
        return Score(0.0, value)
    target = np.array([model.target for model in problem.models])[asked]
    weight = np.array([model.weight for model in problem.models])[asked]
    shortfall = float((weight * np.maximum(target - each, 0.0)).sum() / weight.sum())
    return Score(-shortfall, value)
