"""Betters a candidate by small moves, simulated each: simulated annealing, any time, the best kept."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from placement.search.candidate import Candidate, Space
from placement.search.effort import Effort
from placement.search.moves import MOVES
from placement.search.scorer import Scorer

WARM, COLD = 2e-3, 5e-5
"""The loss of attainment that is taken one time in e, at the start and at the end."""


def improve(
    space: Space,
    scorer: Scorer,
    start: Candidate,
    effort: Effort,
    until: float,
    rng: np.random.Generator,
    penalty: Callable[[Candidate], float] = lambda _: 0.0,
) -> Candidate:
    """The best candidate found from `start` while less than the share `until` of the effort is spent."""
    moves = [move for move, _ in MOVES]
    odds = np.array([weight for _, weight in MOVES])
    odds /= odds.sum()

    current = best = start
    measured = scorer.measure(start)
    value = best_value = measured.score.value - penalty(start)
    begin = effort.spent()
    while (spent := effort.spent()) < until:
        effort.taken += 1
        progress = (spent - begin) / max(until - begin, 1e-9)
        temperature = scorer.unit * WARM * (COLD / WARM) ** progress
        move = moves[int(rng.choice(len(moves), p=odds))]
        # The loss that chance would allow, drawn before the neighbour is known: it need not be simulated to the end.
        allowed = -temperature * math.log(1.0 - rng.random())
        neighbour = move(space, current, measured.missed, rng)
        if neighbour is None:
            continue
        extra = penalty(neighbour)
        found = scorer.measure_if(neighbour, value - allowed + extra)
        if found is None:
            continue
        current, measured, value = neighbour, found, found.score.value - extra
        if value > best_value:
            best, best_value = current, value
        if effort.on_progress is not None:
            effort.on_progress(spent, best_value)
    return best
