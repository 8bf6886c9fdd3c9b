"""How good a candidate is: simulated on several draws of the traffic, judged as the problem's objective says."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.clocks import Floats, Ints
from placement.problem import Problem
from placement.rules import Rule
from placement.search.candidate import Candidate, Space
from placement.search.measure import count_met
from placement.workload import Workload

WORST_MODEL_WORTH = 0.05
"""How much the worst model's attainment counts beside the overall one, so that ties do not starve a small model."""

SHORTFALL_WORTH = 100.0
"""One model in a hundred short of its target by a hundredth outweighs a hundredth of all requests."""


class Score(NamedTuple):
    """Larger is better, first field first."""

    kept: float
    """Minus the weighted shortfall of the models below their targets; 0 when judged by overall attainment."""
    attainment: float

    @property
    def value(self) -> float:
        return SHORTFALL_WORTH * self.kept + self.attainment


class Measured(NamedTuple):
    score: Score
    missed: Floats  # [models] requests missed, mean over the draws


class Scorer:
    """Scores candidates on a fixed set of draws, and remembers."""

    def __init__(self, space: Space, draws: list[Workload], rule: Rule, max_batch: int) -> None:
        self.space = space
        self.draws = draws
        self.rule: Rule = rule
        self.max_batch = max_batch
        # How far values lie apart: shortfalls make them differ more than attainment alone does.
        self.unit = 1.0 if space.problem.objective == "overall" else 10.0
        self.counts: Ints = np.stack([draw.counts(len(space.problem.models)) for draw in draws])
        self._known: dict[tuple[object, ...], Measured] = {}

    def score(self, candidate: Candidate) -> Score:
        return self.measure(candidate).score

    def known_value(self, candidate: Candidate) -> float:
        """Its value if it was measured to the end, else less than any."""
        measured = self._known.get(candidate.key)
        return -np.inf if measured is None else measured.score.value

    def measure(self, candidate: Candidate) -> Measured:
        measured = self.measure_if(candidate, -np.inf)
        assert measured is not None
        return measured

    def measure_if(self, candidate: Candidate, needed: float) -> Measured | None:
        """None as soon as the candidate cannot reach the value `needed`: most draws of a bad one are not simulated."""
        key = candidate.key
        if key in self._known:
            return self._known[key]
        total = self.counts.sum(axis=0)
        missed = np.zeros_like(total)
        for draw, counts in zip(self.draws, self.counts, strict=True):
            missed += counts - count_met(self.space, candidate, draw, self.rule, self.max_batch)
            score = judge(self.space.problem, total - missed, total)
            if score.value < needed:
                return None
        self._known[key] = Measured(score, missed / len(self.draws))
        return self._known[key]


def judge(problem: Problem, met: Ints, counts: Ints) -> Score:
    """Score of the requests met, of so many, both [models]."""
    asked = counts > 0
    attainment = met.sum() / max(counts.sum(), 1)
    each = met[asked] / counts[asked]
    worst = float(each.min()) if asked.any() else 1.0
    value = float((attainment + WORST_MODEL_WORTH * worst) / (1 + WORST_MODEL_WORTH))
    if problem.objective == "overall" or not asked.any():
        return Score(0.0, value)
    target = np.array([model.target for model in problem.models])[asked]
    weight = np.array([model.weight for model in problem.models])[asked]
    shortfall = float((weight * np.maximum(target - each, 0.0)).sum() / weight.sum())
    return Score(-shortfall, value)
