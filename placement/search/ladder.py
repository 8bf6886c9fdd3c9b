"""The ladder: which groups can be drained, in order, at falling traffic, with every model still covered."""

from __future__ import annotations

import numpy as np

from placement.search.candidate import Candidate
from placement.search.scorer import Scorer

TRIED = 4
"""Groups simulated for each step, those with the least demand first."""


def drain_order(scorer: Scorer, candidate: Candidate) -> tuple[tuple[int, ...], ...]:
    """Nested sets of groups: each adds the group whose loss costs least on the scorer's draws."""
    covered = candidate.holds.any(axis=0)
    demand = (candidate.holds * scorer.space.demand / np.maximum(candidate.holds.sum(axis=0), 1)).sum(axis=1)
    calmest = list(np.argsort(demand / scorer.space.sizes[list(candidate.classes)], kind="stable"))
    drained: list[int] = []
    steps: list[tuple[int, ...]] = []
    while True:
        options = []
        for group in (int(group) for group in calmest if group not in drained):
            left = [other for other in range(len(candidate.classes)) if other not in (*drained, group)]
            if not left or (candidate.holds[left].any(axis=0) != covered).any():
                continue
            rest = Candidate(tuple(candidate.classes[g] for g in left), np.ascontiguousarray(candidate.holds[left]))
            options.append((scorer.score(rest), -group, group))
            if len(options) == TRIED:
                break
        if not options:
            return tuple(steps)
        drained.append(max(options)[2])
        steps.append(tuple(sorted(drained)))
