"""Our search: mixed shapes and groups, judged on several draws of the traffic, bettered by small moves.

1. Draws: the recorded traffic and others like it, a little faster where all of it is served anyway.
2. Starts: every class of groups alone, pairs of the best ones, and the previous plan, filled without simulation.
3. Moves from each of the best starts, then from the best of all.
4. The finalists are judged again on draws that none of them has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, permutations, takewhile
from typing import NamedTuple

import numpy as np

from placement.plan import Plan
from placement.rules import Rule
from placement.search.candidate import Candidate, Space
from placement.search.draws import cut, draw_like, make_draws
from placement.search.effort import Effort
from placement.search.fill import spread_fill
from placement.search.improve import improve
from placement.search.layouts import mixed_layouts, uniform_layout, useful_classes
from placement.search.measure import count_met
from placement.search.scorer import Scorer, judge

DRAWS = 8
RECORDED = 3
"""So many of the draws stay at the recorded rate when the others are made faster."""
FRESH_DRAWS = 20
BEST_CLASSES = 5
STARTS = 3
RANKED_AGAIN = 24
HOPELESS = 0.03
"""A start this much worse than the best is not measured to the end."""
SERVED_ENOUGH = 0.995
FASTER = 1.15
FASTEST = 1.3
# Shares of the effort after which each part ends; what is left judges the finalists.
SCANNED, STARTED, DONE = 0.3, 0.55, 0.85


def search(
    space: Space,
    rule: Rule,
    max_batch: int,
    effort: Effort,
    seed: int,
    previous: Plan | None = None,
    move_cost: float = 0.0,
) -> Candidate:
    """The best candidate found; `move_cost` is the attainment a replica must bring to be placed anew."""
    rng = np.random.default_rng(seed)
    stay = None if previous is None else space.candidate(previous)
    penalty = _cost_of_moves(stay, move_cost)
    scorer, starts, calm, scale = _starts(space, rule, max_batch, effort, seed, stay)
    finalists = list(starts[:STARTS])
    share = (STARTED - effort.spent()) / max(len(finalists), 1)
    begin = effort.spent()
    for number, start in enumerate(finalists):
        finalists[number] = improve(space, scorer, start, effort, begin + share * (number + 1), rng, penalty)
    leader = max(finalists, key=lambda candidate: scorer.score(candidate).value - penalty(candidate))
    finalists.append(improve(space, scorer, leader, effort, DONE, rng, penalty))
    entrants = [*finalists, *starts[:STARTS], calm, *([stay] if stay else [])]
    unique = {candidate.key: candidate for candidate in entrants}
    scores = _judge_afresh(space, list(unique.values()), rule, max_batch, effort, seed, scale)
    effort.weighed = list(unique.values())
    worth = [score - penalty(candidate) for candidate, score in zip(unique.values(), scores, strict=True)]
    return list(unique.values())[int(np.argmax(worth))]


class Starts(NamedTuple):
    """A scorer at a rate that tells candidates apart, filled layouts, best first, the best of those that nothing beats
    at the recorded rate, and the rate."""

    scorer: Scorer
    found: list[Candidate]
    calm: Candidate
    scale: float


def _starts(space: Space, rule: Rule, max_batch: int, effort: Effort, seed: int, stay: Candidate | None) -> Starts:
    models = len(space.problem.models)
    draws = [cut(draw, seed, n) for n, draw in enumerate(make_draws(space.problem.workload, models, DRAWS, seed))]
    scorer = Scorer(space, draws, rule, max_batch)
    found = _rank(scorer, chain([] if stay is None else [stay], _layouts(space, scorer, effort)), effort)
    most = scorer.known_value(found[0])
    unbeaten = {candidate.key for candidate in found if scorer.known_value(candidate) > most - 1e-9}
    scale = 1.0
    while scorer.score(found[0]).attainment > SERVED_ENOUGH and scale < FASTEST and effort.spent() < SCANNED:
        scale *= FASTER
        faster = [draw.faster(scale) for draw in draws[RECORDED:]]
        # The hard ones first: what is bad is known early.
        scorer = Scorer(space, faster + draws[:RECORDED], rule, max_batch)
    if scale > 1.0:
        found = _rank(scorer, found[:RANKED_AGAIN], effort)
    calm = next((candidate for candidate in found if candidate.key in unbeaten), found[0])
    return Starts(scorer, found, calm, scale)


def _rank(scorer: Scorer, candidates: Iterable[Candidate], effort: Effort) -> list[Candidate]:
    """Best first; those much worse than the best are left out."""
    best = -np.inf
    found = []
    for candidate in candidates:
        effort.taken += 1
        measured = scorer.measure_if(candidate, best - HOPELESS * scorer.unit)
        if measured is not None:
            best = max(best, measured.score.value)
            found.append(candidate)
    return sorted(found, key=lambda candidate: -scorer.known_value(candidate))


def _layouts(space: Space, scorer: Scorer, effort: Effort) -> Iterator[Candidate]:
    """Uniform layouts of each device kind in turn (the others as they were best), then pairs of the best classes."""
    fixed: dict[str, tuple[int, ...]] = {
        kind: uniform_layout(space, kind, useful_classes(space, kind)[0])
        for kind in space.kinds
        if useful_classes(space, kind)
    }

    def whole(kind: str, layout: tuple[int, ...]) -> Candidate:
        rest = tuple(c for other, classes in fixed.items() if other != kind for c in classes)
        return spread_fill(space, rest + layout)

    for kind in fixed:
        ranked: list[tuple[float, int]] = []
        # Groups of about four devices first: the likeliest to be good, should the effort end early.
        for one in sorted(useful_classes(space, kind), key=lambda c: abs(math.log2(space.sizes[c]) - 2)):
            if ranked and effort.spent() > SCANNED:
                break
            candidate = whole(kind, uniform_layout(space, kind, one))
            yield candidate
            ranked.append((scorer.known_value(candidate), one))
        ranked.sort(key=lambda entry: (-entry[0], entry[1]))
        fixed[kind] = uniform_layout(space, kind, ranked[0][1])
        best = [one for value, one in ranked[:BEST_CLASSES] if value > -math.inf]
        pairs = (layout for one, two in permutations(best, 2) for layout in mixed_layouts(space, kind, one, two))
        yield from (whole(kind, layout) for layout in takewhile(lambda _: effort.spent() < SCANNED, pairs))


def _judge_afresh(
    space: Space,
    finalists: list[Candidate],
    rule: Rule,
    max_batch: int,
    effort: Effort,
    seed: int,
    scale: float,
) -> list[float]:
    """Values of the finalists on draws that search has not used, at the recorded rate and, for little, at the faster
    one it searched with; as many draws as a budget of seconds has time for."""
    workload, models = space.problem.workload, len(space.problem.models)
    met = np.zeros((2, len(finalists), models), np.int64)
    asked = np.zeros((2, models), np.int64)
    for number in range(1, FRESH_DRAWS + 1):
        draw = cut(draw_like(workload, models, seed + 1, number), seed + 1, number)
        for speed, rate in enumerate((1.0, scale)):
            asked[speed] += draw.counts(models)
            for place, candidate in enumerate(finalists):
                met[speed, place] += count_met(space, candidate, draw.faster(rate), rule, max_batch)
        if effort.seconds is not None and effort.spent() >= 1:
            break
    values = [[judge(space.problem, met[s, f], asked[s]).value for f in range(len(finalists))] for s in range(2)]
    return [0.97 * recorded + 0.03 * faster for recorded, faster in zip(*values, strict=True)]


def _cost_of_moves(stay: Candidate | None, move_cost: float) -> Callable[[Candidate], float]:
    """What the replicas that are not where they were cost: those of a group that is still there stay for nothing."""
    if stay is None or move_cost == 0:
        return lambda _: 0.0
    before: dict[int, list[bytes]] = {}
    rows = {}
    for kind, row in zip(stay.classes, stay.holds, strict=True):
        before.setdefault(kind, []).append(row.tobytes())
        rows[row.tobytes()] = row

    def cost(candidate: Candidate) -> float:
        left = {kind: [rows[key] for key in keys] for kind, keys in before.items()}
        moved = 0
        for kind, row in zip(candidate.classes, candidate.holds, strict=True):
            same = left.get(kind, [])
            if same:
                nearest = min(range(len(same)), key=lambda i: int((row & ~same[i]).sum()))
                moved += int((row & ~same.pop(nearest)).sum())
            else:
                moved += int(row.sum())
        return move_cost * moved

    return cost
