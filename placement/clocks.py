"""Stage clocks: when each stage of each group is free, and what a batch does to them. Decides nothing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NOBODY = -1


class Tables(NamedTuple):
    """What holds for a whole plan. C classes of groups, P profiles, B batch sizes, S stages, G groups, M models,
    R replicas (sorted by model, then by group)."""

    latency: Floats  # [C, P, B, S] seconds; inf where the profile has no such entry
    through: Floats  # [C, P] seconds of one request through idle stages (a hair less, for rounding)
    wake: Floats  # [C, P, S] seconds to bring a parked shard into device memory
    batch_size: Ints  # [B] ascending from 1
    group_class: Ints  # [G]
    stages: Ints  # [G]
    lead: Floats  # [G] seconds before its begin that a batch is on its way to the group, and cannot change any more
    profile: Ints  # [M]
    cost: Floats  # [M] device-seconds of one request over its weight: what dropping one saves
    slack: Floats  # [M] seconds from arrival to when the last stage must be done
    batch_from: Ints  # [M] how many must wait before a batch clears them sooner on some replica
    first_replica: Ints  # [M + 1]: model m has the replicas first_replica[m] .. first_replica[m + 1] - 1
    replica_group: Ints  # [R]
    replica_ready: Floats  # [R] seconds before which the replica is still loading
    loading: Bools  # [1] whether any replica is not ready from the start
    replica_parked: Bools  # [R]


class Clocks(NamedTuple):
    """When each stage of each group is free, and which parked model is awake there."""

    free: Floats  # [G, S] seconds
    drained: Floats  # [G] seconds: when the last stage is free
    awake: Ints  # [G] a model, or NOBODY


def with_ready(tables: Tables, ready: Floats) -> Tables:
    """The same plan, its replicas loaded at these times, [R]."""
    return tables._replace(replica_ready=ready, loading=np.array([bool(ready.any())]))


def new_clocks(groups: int, stages: int) -> Clocks:
    """All idle, nobody awake."""
    return Clocks(np.zeros((groups, stages)), np.zeros(groups), np.full(groups, NOBODY, np.int64))


@compiled
def later(a: float, b: float) -> float:
    """max(a, b), without the branches numba spends on NaN."""
    return a if a > b else b


@compiled
def finish_time(tables: Tables, clocks: Clocks, replica: int, model: int, size: int, now: float) -> float:
    """When a batch of this size, taken as soon as the group can, leaves the replica's last stage."""
    group = tables.replica_group[replica]
    kind = tables.group_class[group]
    profile = tables.profile[model]
    x = later(now, tables.replica_ready[replica])
    if tables.replica_parked[replica] and clocks.awake[group] != model:
        begin = later(x, clocks.free[group, 0])
        for s in range(tables.stages[group]):
            loaded = later(begin, clocks.free[group, s]) + tables.wake[kind, profile, s]
            x = later(x, loaded) + tables.latency[kind, profile, size, s]
        return x
    for s in range(tables.stages[group]):
        x = later(x, clocks.free[group, s]) + tables.latency[kind, profile, size, s]
    return x


@compiled
def occupy(tables: Tables, clocks: Clocks, replica: int, model: int, size: int, now: float) -> float:
    """Run the batch on these clocks; returns when it leaves the last stage."""
    group = tables.replica_group[replica]
    kind = tables.group_class[group]
    profile = tables.profile[model]
    x = later(now, tables.replica_ready[replica])
    if tables.replica_parked[replica] and clocks.awake[group] != model:
        clocks.awake[group] = model
        begin = later(x, clocks.free[group, 0])
        for s in range(tables.stages[group]):
            clocks.free[group, s] = later(begin, clocks.free[group, s]) + tables.wake[kind, profile, s]
    for s in range(tables.stages[group]):
        x = later(x, clocks.free[group, s]) + tables.latency[kind, profile, size, s]
        clocks.free[group, s] = x
    clocks.drained[group] = x
    return x


@compiled
def start_time(tables: Tables, clocks: Clocks, replica: int, now: float) -> float:
    """When the replica's group could take a batch."""
    return later(later(now, tables.replica_ready[replica]), clocks.free[tables.replica_group[replica], 0])


@compiled
def first_to_finish(tables: Tables, clocks: Clocks, model: int, now: float, deadline: float) -> int:
    """The replica that would finish one request first, if that is by the deadline; else NOBODY."""
    best = NOBODY
    best_finish = np.inf
    profile = tables.profile[model]
    for replica in range(tables.first_replica[model], tables.first_replica[model + 1]):
        group = tables.replica_group[replica]
        # The walk through the stages cannot end before this.
        least = later(now, clocks.free[group, 0]) + tables.through[tables.group_class[group], profile]
        if later(least, clocks.drained[group]) >= best_finish:
            continue
        finish = finish_time(tables, clocks, replica, model, 0, now)
        if finish < best_finish:
            best_finish = finish
            best = replica
    return best if best_finish <= deadline else NOBODY


@compiled
def clear_time(tables: Tables, kind: int, profile: int, size: int, stages: int, waiting: int) -> float:
    """Seconds until an idle group has served `waiting` requests in batches of one size."""
    rounds = (waiting + tables.batch_size[size] - 1) // tables.batch_size[size]
    slowest = 0.0
    total = 0.0
    for s in range(stages):
        slowest = later(slowest, tables.latency[kind, profile, size, s])
        total += tables.latency[kind, profile, size, s]
    return float(total + (rounds - 1) * slowest)


@compiled
def copy_clocks(tables: Tables, source: Clocks, target: Clocks) -> None:
    for group in range(tables.stages.size):
        target.awake[group] = source.awake[group]
        target.drained[group] = source.drained[group]
        for s in range(tables.stages[group]):
            target.free[group, s] = source.free[group, s]
