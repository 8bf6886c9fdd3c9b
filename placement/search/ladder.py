"""The ladder: which groups can be drained, in order, at falling traffic, with every model still covered."""

from __future__ import annotations

from bisect import insort

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
    calmest: list[int] = np.argsort(demand / scorer.space.sizes[list(candidate.classes)], kind="stable").tolist()
    drained: list[int] = []
    steps: list[tuple[int, ...]] = []
    while True:
        groups = len(candidate.classes) - len(drained)
        options: list[int] = []
        while len(options) < min(TRIED if groups <= MOST_SIMULATED else 1, len(calmest)):
            group = calmest[len(options)]
            if (covers[group] & (homes == 1)).any():
                calmest.remove(group)  # from now on a model is nowhere else
            else:
                options.append(group)
        if not options or groups == 1:
            return tuple(steps)
        best = options[0]
        if len(options) > 1:
            scores = [(scorer.score(_without(candidate, {*drained, group})), -group) for group in options]
            best = -max(scores)[1]
        homes = homes - covers[best]
        calmest.remove(best)
        insort(drained, best)
        steps.append(tuple(drained))


def _without(candidate: Candidate, drained: set[int]) -> Candidate:
    left = [group for group in range(len(candidate.classes)) if group not in drained]
    return Candidate(tuple(candidate.classes[group] for group in left), np.ascontiguousarray(candidate.holds[left]))
