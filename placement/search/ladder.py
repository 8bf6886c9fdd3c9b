"""The ladder: which groups can be drained, in order, at falling traffic, with every model still covered."""

from __future__ import annotations

import numpy as np

from placement.clocks import Bools
from placement.search.candidate import Candidate
from placement.search.scorer import Scorer

TRIED = 4
"""Groups simulated for each step, those with the least demand first."""
MOST_SIMULATED = 64
"""Of more groups than this, those with the least demand go first, unsimulated: one more or less hardly shows there."""


def drain_order(scorer: Scorer, candidate: Candidate, parked: Bools | None = None) -> tuple[tuple[int, ...], ...]:
    """Nested sets of groups: each adds the group whose loss costs least on the scorer's draws. `parked` [groups,
    models]: models that a group can wake, and so covers too."""
    covers = candidate.holds if parked is None else candidate.holds | parked
    homes = covers.sum(axis=0)
    demand = (candidate.holds * scorer.space.demand / np.maximum(candidate.holds.sum(axis=0), 1)).sum(axis=1)
    calmest = list(np.argsort(demand / scorer.space.sizes[list(candidate.classes)], kind="stable"))
    drained: list[int] = []
    steps: list[tuple[int, ...]] = []
    while True:
        groups = len(candidate.classes) - len(drained)
        options = []
        for group in (int(group) for group in calmest if group not in drained):
            if groups == 1 or (covers[group] & (homes == 1)).any():
                continue
            options.append(group)
            if len(options) == (TRIED if groups <= MOST_SIMULATED else 1):
                break
        if not options:
            return tuple(steps)
        best = options[0]
        if len(options) > 1:
            scores = [(scorer.score(_without(candidate, {*drained, group})), -group) for group in options]
            best = -max(scores)[1]
        homes = homes - covers[best]
        drained.append(best)
        steps.append(tuple(sorted(drained)))


def _without(candidate: Candidate, drained: set[int]) -> Candidate:
    left = [group for group in range(len(candidate.classes)) if group not in drained]
    return Candidate(tuple(candidate.classes[group] for group in left), np.ascontiguousarray(candidate.holds[left]))
