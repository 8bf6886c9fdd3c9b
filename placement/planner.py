"""The planner's door: a problem in, a plan out, by any of the policies."""

from __future__ import annotations

import time
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from placement.errors import InfeasibleError
from placement.plan import Group, Plan, check_plan, takes_turns
from placement.problem import Problem
from placement.rules import Rule
from placement.search.alpaserve import alpaserve, replication, round_robin
from placement.search.bound import upper_bound
from placement.search.candidate import Candidate, Space
from placement.search.cells import split_cells
from placement.search.draws import cut, make_draws
from placement.search.effort import Effort
from placement.search.ladder import drain_order
from placement.search.park import park_models
from placement.search.penstock import search
from placement.search.scorer import Scorer
from placement.simulate import DEFAULT_MAX_BATCH, simulate
from placement.tables import Catalogue
from placement.workload import Workload

Policy = Literal["penstock", "alpaserve", "replication", "round-robin"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

MOST_STEPS, LEAST_STEPS = 500, 200
STEPS_TIMES_DEVICES = 16_000
BUSY_RATE = 1.3
MOST_ALTERNATIVES = 5
LADDER_RATE = 0.5
"""The ladder is for traffic that has fallen: to this share of what was recorded."""
LENDABLE_LOSS = 0.005
"""Attainment that a plan may cost which can lend something, where the best one cannot."""


def make_plan(
    problem: Problem,
    policy: Policy = "penstock",
    *,
    rule: Rule = "deadline",
    max_batch: int = DEFAULT_MAX_BATCH,
    effort: Effort | None = None,
    seed: int = 0,
    previous: Plan | None = None,
    move_cost: float = 0.0,
) -> Plan:
    """Plan by one policy. The baselines are searched under `shortest-queue`, as published, whatever `rule` says; what
    the plan claims (`attainment`, `worst_model`) is under `rule`, on the problem's own workload."""
    started = time.perf_counter()
    space = Space(Catalogue(problem))
    check_feasible(space)
    effort = effort or Effort(steps=default_steps(problem))
    if policy == "penstock":
        plan = _search_cells(space, rule, max_batch, effort, seed, previous, move_cost)
        plan = park_models(space, plan, _busy_draws(problem, seed), rule, max_batch)
        plan = _with_ladder(space, plan, rule, max_batch, seed)
    else:
        plan = space.plan(_without_empty(_baseline(space, policy)))
    seconds = time.perf_counter() - started
    check_plan(plan, problem, f"plan of {policy}")
    outcome = simulate(problem, plan, rule=rule, max_batch=max_batch)
    claims = {
        "policy": policy,
        "dispatch": rule,
        "max_batch": max_batch,
        "attainment": outcome.attainment,
        "worst_model": list(outcome.worst_model),
        "upper_bound": upper_bound(problem, max_batch=max_batch if rule == "deadline" else 1),
        "seconds": seconds,
        "seed": seed,
        "steps": effort.taken,
        "alternatives": _alternatives(space, plan, effort.weighed, rule, max_batch),
    }
    wake_s = _wake_s(space, plan)
    return msgspec.structs.replace(plan, planner=claims | ({"wake_s": wake_s} if wake_s else {}))


def _wake_s(space: Space, plan: Plan) -> dict[str, float]:
    """Of models of which not all are awake: seconds until each is, at the most."""
    found: dict[str, float] = {}
    for group in plan.groups:
        for name in takes_turns(group, space.problem):
            found[name] = max(found.get(name, 0.0), space.catalogue.wake_s(group, name))
    return dict(sorted(found.items()))


def lendable_plan(problem: Problem, plan: Plan, effort: Effort, seed: int = 0) -> Plan:
    """A plan with a ladder: the plan itself if it has one; else, of all that its search (by this `effort`) has weighed
    and of plain replicas, the one that can lend most, if it serves planned traffic as well but for LENDABLE_LOSS."""
    if plan.ladder:
        return plan
    space = Space(Catalogue(problem))
    candidates = [*effort.weighed, _baseline(space, "replication")]
    others = {_layout(one): one for candidate in candidates for one in [space.plan(_without_empty(candidate))]}
    ours, targets = simulate(problem, plan), np.array([model.target for model in problem.models])
    best = plan
    for other in others.values():
        lends = _with_ladder(space, other, seed=seed)
        theirs = simulate(problem, lends)
        short = theirs.model_attainment < np.fmin(targets, ours.model_attainment) - LENDABLE_LOSS
        if _lent(lends) <= _lent(best) or theirs.attainment < ours.attainment - LENDABLE_LOSS or short.any():
            continue
        instead = {"attainment": ours.attainment, "groups": [[one.tp, one.pp] for one in plan.groups]}
        claims = {"attainment": theirs.attainment, "worst_model": list(theirs.worst_model), "instead_of": instead}
        best = msgspec.structs.replace(lends, planner=plan.planner | claims)
    check_plan(best, problem, "plan with a ladder")
    return best


def _lent(plan: Plan) -> int:
    """Devices that can be lent at the most."""
    return sum(len(plan.groups[group].devices) for group in plan.ladder[-1]) if plan.ladder else 0


def _with_ladder(
    space: Space, plan: Plan, rule: Rule = "deadline", max_batch: int = DEFAULT_MAX_BATCH, seed: int = 0
) -> Plan:
    problem = space.problem
    calm = Scorer(space, [cut(problem.workload, seed, 0).faster(LADDER_RATE)], rule, max_batch)
    parked = np.array([[model.name in group.parked for model in problem.models] for group in plan.groups])
    return msgspec.structs.replace(plan, ladder=drain_order(calm, space.candidate(plan), parked))


def _alternatives(
    space: Space, plan: Plan, weighed: list[Candidate], rule: Rule, max_batch: int
) -> list[dict[str, Any]]:
    """What else the search compared at its end, and what would come of each on the problem's workload; best first."""
    others = {_layout(other): other for candidate in weighed for other in [space.plan(_without_empty(candidate))]}
    others.pop(_layout(plan), None)
    found: list[dict[str, Any]] = []
    for other in others.values():
        outcome = simulate(space.problem, other, rule=rule, max_batch=max_batch)
        groups = [{"tp": one.tp, "pp": one.pp, "models": list(one.models)} for one in other.groups]
        found.append(
            {"attainment": outcome.attainment, "worst_model": list(outcome.worst_model), "groups": groups},
        )
    return sorted(found, key=lambda one: -one["attainment"])[:MOST_ALTERNATIVES]


def _layout(plan: Plan) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
    """Wherever its groups are."""
    return tuple(sorted((group.tp, group.pp, tuple(sorted(group.models))) for group in plan.groups))


def default_steps(problem: Problem) -> int:
    """Fewer for a larger cluster, where each costs more: some ten seconds of search on one core either way."""
    return min(max(STEPS_TIMES_DEVICES // len(problem.cluster.devices), LEAST_STEPS), MOST_STEPS)


def check_feasible(space: Space) -> None:
    """Refuse a problem with a model that no group of this cluster can hold."""
    holdable = space.fits_alone.any(axis=0)
    if holdable.all():
        return
    index = int(np.argmin(holdable))
    model = space.problem.models[index]
    least = np.nanmin(
        np.where(np.isfinite(space.need[:, index]), space.need[:, index], np.nan).max(axis=1), initial=np.inf
    )
    most = max(space.memory_of_kind.values(), default=0)
    if not np.isfinite(least):
        raise InfeasibleError(
            f"model {model.name!r}: none of its profile's shapes fits {len(space.problem.cluster.devices)} devices "
            f"of kind {', '.join(space.kinds) or 'any'}; add a shape or devices"
        )
    raise InfeasibleError(
        f"model {model.name!r}: its smallest shard needs {int(least)} bytes on a device; {most} is the most that all "
        "devices of one kind have"
    )


def _baseline(space: Space, policy: Policy) -> Candidate:
    if policy == "alpaserve":
        return alpaserve(space, "shortest-queue")
    if policy == "replication":
        return replication(space, "shortest-queue")
    return round_robin(space)


def _search_cells(
    space: Space,
    rule: Rule,
    max_batch: int,
    effort: Effort,
    seed: int,
    previous: Plan | None,
    move_cost: float,
) -> Plan:
    """Our search, cell by cell where the problem is large."""
    cells = split_cells(space.problem, space.demand)
    groups: list[Group] = []
    for number, cell in enumerate(cells):
        part = Space(Catalogue(cell.problem)) if len(cells) > 1 else space
        check_feasible(part)
        share = effort.part(len(cells) - number) if len(cells) > 1 else effort
        before = None if previous is None else _still_there(part, previous)
        candidate = search(part, rule, max_batch, share, seed, before, move_cost)
        groups.extend(part.plan(_without_empty(candidate), before).groups)
        if share is not effort:
            effort.taken += share.taken
    return Plan(tuple(groups))


def _still_there(space: Space, previous: Plan) -> Plan | None:
    """What of the previous plan this problem still has: devices, shapes, models, and memory for them."""
    known = space.catalogue.model_index
    groups = []
    for group in previous.groups:
        if all(device in space.problem.cluster.device_index for device in group.devices):
            kind = space.catalogue.find_class(group)
            fits = [] if kind is None else [n for n in group.models if n in known and space.fits_alone[kind, known[n]]]
            if fits:
                groups.append(msgspec.structs.replace(group, models=tuple(fits), kv_bytes={}, parked=(), experts={}))
    plan = Plan(tuple(groups))
    return plan if groups and space.valid(space.candidate(plan)) else None


def _busy_draws(problem: Problem, seed: int) -> list[Workload]:
    """Traffic as recorded and a third faster: where all is served anyway, parking would show no gain."""
    models = len(problem.models)
    return make_draws(problem.workload, models, 2, seed) + make_draws(problem.workload, models, 2, seed + 1, BUSY_RATE)


def _without_empty(candidate: Candidate) -> Candidate:
    keep = np.flatnonzero(candidate.holds.any(axis=1))
    return Candidate(tuple(candidate.classes[group] for group in keep), np.ascontiguousarray(candidate.holds[keep]))
