"""The ladder: which groups can be drained, in order, at falling traffic, with every model still covered."""

from __future__ import annotations

import numpy as np

from placement.search.candidate import Candidate
from placement.search.scorer import Scorer


def drain_order(scorer: Scorer, candidate: Candidate) -> tuple[tuple[int, ...], ...]:
    """Nested sets of groups: each adds the group whose loss costs least on the scorer's draws."""
    covered = candidate.holds.any(axis=0)
    drained: list[int] = []
    steps: list[tuple[int, ...]] = []
    while True:
        options = []
        for group in range(len(candidate.classes)):
            left = [other for other in range(len(candidate.classes)) if other not in (*drained, group)]
            if group in drained or not left or (candidate.holds[left].any(axis=0) != covered).any():
                continue
            rest = Candidate(tuple(candidate.classes[g] for g in left), np.ascontiguousarray(candidate.holds[left]))
            options.append((scorer.score(rest), -group, group))
        if not options:
            return tuple(steps)
        drained.append(max(options)[2])
        steps.append(tuple(sorted(drained)))
