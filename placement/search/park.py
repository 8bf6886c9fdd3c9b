"""Models parked in host memory: more of them within reach of a group than its devices can hold at once.

A group keeps one bay of device memory in which one parked model at a time is awake; waking another takes the time its
shards need from host memory. Worth it for models that are rarely asked, so it is tried last, on a finished plan. Of
models that generate, only those that share a group with nobody (engines of others) are parked, behind another such.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from placement.clocks import Floats, Ints
from placement.generation.serve import count_met
from placement.plan import Group, Plan
from placement.rules import Rule
from placement.search.candidate import Space
from placement.search.scorer import Score, judge
from placement.simulator import count_served
from placement.workload import Workload

MOST_EVICTED = 4
"""Resident models of a group that are tried as parked ones, the least demanding first."""


def park_models(space: Space, plan: Plan, draws: list[Workload], rule: Rule, max_batch: int) -> Plan:
    """The plan with parked models where they raise its score; the same plan where no node has host memory."""
    if not any(node.host_memory for node in space.problem.cluster.nodes):
        return plan
    if space.generates:
        return _park_generating(space, plan, draws, rule, max_batch)

    def score(candidate: Plan) -> Score:
        tables = space.catalogue.tables(candidate)
        stages = space.catalogue.stages
        return _judge(space, draws, lambda draw: count_served(tables, stages, draw, rule, max_batch))

    best, best_score = plan, score(plan)
    for index in range(len(plan.groups)):
        for evicted in range(MOST_EVICTED + 1):
            changed = _with_bay(space, best, index, evicted)
            if changed is not None and (found := score(changed)) > best_score:
                best, best_score = changed, found
    return best


def _park_generating(space: Space, plan: Plan, draws: list[Workload], rule: Rule, max_batch: int) -> Plan:
    """Each model that no group has, most asked first, behind the model whose group serves it best, if any does well."""

    def score(candidate: Plan) -> Score:
        problem, catalogue = space.problem, space.catalogue
        return _judge(space, draws, lambda draw: count_met(problem, candidate, draw, rule, max_batch, catalogue))

    position, models = space.catalogue.model_index, space.problem.models
    homeless = [model.name for model in models if model.alone and model.generates and not plan.replicas(model.name)]
    if not homeless:
        return plan
    best, best_score = plan, score(plan)
    for name in sorted(homeless, key=lambda name: -float(space.demand[position[name]])):
        tried = [_behind(space, best, index, name) for index in range(len(best.groups))]
        changed = [one for one in tried if one is not None]
        scores = [score(one) for one in changed]
        if scores and max(scores) > best_score:
            best_score = max(scores)
            best = changed[scores.index(best_score)]
    return best


def _behind(space: Space, plan: Plan, index: int, name: str) -> Plan | None:
    """The model parked on a group that one alone has: they take turns, each with all of the devices' memory."""
    group = plan.groups[index]
    models, position = space.problem.models, space.catalogue.model_index
    resident = [models[position[one]] for one in group.models]
    kind, model = space.catalogue.class_of(group), position[name]
    if len(resident) != 1 or not (resident[0].alone and resident[0].generates and space.fits_alone[kind, model]):
        return None
    weights = space.catalogue.memory[kind, space.catalogue.profile_of_model]
    sleeping = (*group.models, *group.parked, name)
    held = sum(float(weights[position[one], : group.pp].sum()) for one in sleeping) * group.tp
    if held > _host_room(space, plan, group):
        return None
    changed = msgspec.structs.replace(
        group,
        parked=(*group.parked, name),
        kv_bytes=group.kv_bytes | space.cache(kind, np.array([model])),
    )
    return msgspec.structs.replace(plan, groups=(*plan.groups[:index], changed, *plan.groups[index + 1 :]))


def _judge(space: Space, draws: list[Workload], met: Callable[[Workload], Ints]) -> Score:
    counts = sum(draw.counts(len(space.problem.models)) for draw in draws)
    return judge(space.problem, np.asarray(sum(map(met, draws))), np.asarray(counts))


def _with_bay(space: Space, plan: Plan, index: int, evicted: int) -> Plan | None:
    """The group with a bay: its `evicted` least demanding models parked, and all others that fit the bay."""
    group = plan.groups[index]
    if len(group.models) <= evicted or group.parked:
        return None
    position = space.catalogue.model_index
    kind = space.catalogue.class_of(group)
    calm_first = sorted(group.models, key=lambda name: float(space.demand[position[name]]))
    resident = calm_first[evicted:]
    stages = group.pp
    need: Floats = space.need[kind][:, :stages]
    used = sum((need[position[name]] for name in resident), np.zeros(stages))
    bay = space.limit[kind] - used
    room = _host_room(space, plan, group)
    parked = []
    wanted = calm_first[:evicted] + [
        model.name
        for model in sorted(space.problem.models, key=lambda m: -float(space.demand[position[m.name]]))
        if model.name not in group.models
    ]
    for name in wanted:
        shard = need[position[name]]
        if np.isfinite(shard).all() and (shard <= bay).all() and float(shard.sum()) * group.tp <= room:
            parked.append(name)
            room -= float(shard.sum()) * group.tp
        elif name in group.models:
            return None  # what leaves the devices must at least be parked
    if not parked:
        return None
    order = [name for name in group.models if name in resident]
    changed = msgspec.structs.replace(group, models=tuple(order), parked=tuple(parked))
    return msgspec.structs.replace(plan, groups=(*plan.groups[:index], changed, *plan.groups[index + 1 :]))


def _host_room(space: Space, plan: Plan, group: Group) -> float:
    """Bytes of host memory that the group may use: the least of its nodes' shares, which their groups split evenly."""
    cluster = space.problem.cluster
    nodes = {cluster.devices[cluster.device_index[name]].node for name in group.devices}
    shares = []
    for node in nodes:
        tenants = sum(
            any(cluster.devices[cluster.device_index[name]].node == node for name in other.devices)
            for other in plan.groups
        )
        shares.append(float(cluster.nodes[node].host_memory) / max(tenants, 1))
    return min(shares)
