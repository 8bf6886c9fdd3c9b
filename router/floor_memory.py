"""Dispatch's tables and state in three flat arrays, so that a call into compiled code costs half a microsecond.

Handing over the named tuples themselves costs ten: each of their fifty arrays is unboxed each time. Decides nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from placement.clocks import NOBODY, Bools, Clocks, Floats, Ints, Tables
from placement.compiled import inlined
from placement.dispatch import Queue, State

HEADER = 10
BATCHES, BEGUN, MAY_LEAVE_OPEN = 6, 7, 8
"""What stands in `ints` behind the six dimensions: how many batches have begun, how many rows `Begun` holds, whether
a backlog may form."""


class Begun(NamedTuple):
    """Who began in a call, and in which batch; or, in `request` alone, who was left out or shall be."""

    request: Ints
    replica: Ints
    batch: Ints
    size: Ints
    start: Floats
    end: Floats  # when the last stage is expected to be done


class Backlog(NamedTuple):
    """Who waits behind those in the queue, by deadline, admitted and not placed yet: rows bounds[0] .. bounds[1] - 1,
    with room on both sides. An island: models that share groups, directly or through others; numbered below M."""

    bounds: Ints  # [3] and whether the queue is out of order: by deadline on each island alone
    request: Ints
    model: Ints
    deadline: Floats
    of_model: Ints  # [M] rows of each model
    island: Ints  # [M] of each model
    group_island: Ints  # [G] of each group, or NOBODY
    placed: Ints  # [M] room to count rows placed on each island, or NOBODY
    longest: Floats  # [M] room for seconds of one request on its slowest group
    earliest: Floats  # [M] room for when the first of each island may begin
    shares: Bools  # [M, M] whether two models share a group
    not_before: Floats  # [1] until then nobody is admitted without a place


class Floor(NamedTuple):
    """What the arrays hold. `next_due`: when the first who waits is handed over, or may be."""

    tables: Tables
    state: State
    begun: Begun
    next_due: Floats  # [1]
    backlog: Backlog
    margin: Floats  # [M] seconds before its true deadline that a row of the queue is due


class FloorMemory:
    """The three arrays, and the floor as views of them."""

    def __init__(self, tables: Tables, capacity: int) -> None:
        """Each group is its own class and each model its own profile: what is observed corrects them one by one."""
        groups, models, sizes = len(tables.stages), len(tables.slack), len(tables.batch_size)
        stages, replicas, rows = tables.latency.shape[3], len(tables.replica_group), capacity + 1
        header = (groups, models, sizes, stages, replicas, rows)
        self.floats: Floats = np.zeros(_floats(*header))
        self.ints: Ints = np.zeros(_ints(*header), np.int64)
        self.bools: Bools = np.zeros(1 + replicas + models * models, np.bool_)
        self.ints[: len(header)] = header
        self.floor: Floor = unpack_floor(self.floats, self.ints, self.bools)
        self._fill(tables)

    def _fill(self, given: Tables) -> None:
        mine = self.floor.tables
        kind, profile = given.group_class, given.profile
        mine.latency[:] = given.latency[kind][:, profile]
        mine.through[:] = given.through[kind][:, profile]
        mine.wake[:] = given.wake[kind][:, profile]
        mine.group_class[:] = np.arange(len(kind))
        mine.profile[:] = np.arange(len(profile))
        for name in ("batch_size", "stages", "lead", "cost", "slack", "batch_from", "first_replica"):
            getattr(mine, name)[:] = getattr(given, name)
        for name in ("replica_group", "replica_ready", "loading", "replica_parked"):
            getattr(mine, name)[:] = getattr(given, name)
        for clocks in (self.floor.state.clocks, self.floor.state.tail, self.floor.state.draft):
            clocks.awake[:] = NOBODY
        self.floor.next_due[0] = np.inf
        holds = np.zeros((len(kind), len(profile)), np.bool_)
        holds[given.replica_group, np.repeat(np.arange(len(profile)), np.diff(given.first_replica))] = True
        backlog = self.floor.backlog
        backlog.shares[:] = holds.T @ holds
        _, backlog.island[:] = connected_components(backlog.shares, directed=False)
        backlog.group_island[:] = np.where(holds.any(axis=1), backlog.island[holds.argmax(axis=1)], NOBODY)
        backlog.bounds[:2] = self.ints[5]
        backlog.not_before[0] = -np.inf
        self.ints[MAY_LEAVE_OPEN] = not (given.loading.any() or given.replica_parked.any())


def _floats(groups: int, models: int, sizes: int, stages: int, replicas: int, rows: int) -> int:
    tables = groups * models * (sizes * stages + 1 + stages) + groups + 2 * models + replicas
    return tables + 3 * groups * (stages + 1) + 4 * rows + 2 * rows + 1 + 3 * rows + 2 * models + 1 + models


def _ints(groups: int, models: int, sizes: int, stages: int, replicas: int, rows: int) -> int:
    tables = sizes + 2 * groups + 3 * models + 1 + replicas
    return (
        HEADER
        + tables
        + 3 * groups
        + 2 * (1 + 6 * rows)
        + 3 * models
        + 5
        + 4 * rows
        + 3
        + 6 * rows
        + 3 * models
        + groups
    )


@inlined
def unpack_floor(f: Floats, i: Ints, b: Bools) -> Floor:
    """The views, in the order in which they stand."""
    groups, models, sizes, stages, replicas, rows = i[0], i[1], i[2], i[3], i[4], i[5]
    x = 0
    latency = f[x : x + groups * models * sizes * stages].reshape((groups, models, sizes, stages))
    x += groups * models * sizes * stages
    through = f[x : x + groups * models].reshape((groups, models))
    x += groups * models
    wake = f[x : x + groups * models * stages].reshape((groups, models, stages))
    x += groups * models * stages
    lead = f[x : x + groups]
    x += groups
    cost, slack = f[x : x + models], f[x + models : x + 2 * models]
    x += 2 * models
    ready = f[x : x + replicas]
    x += replicas
    y = HEADER
    batch_size = i[y : y + sizes]
    y += sizes
    group_class, group_stages = i[y : y + groups], i[y + groups : y + 2 * groups]
    y += 2 * groups
    profile, batch_from = i[y : y + models], i[y + models : y + 2 * models]
    y += 2 * models
    first_replica = i[y : y + models + 1]
    y += models + 1
    replica_group = i[y : y + replicas]
    y += replicas
    tables = Tables(
        latency,
        through,
        wake,
        batch_size,
        group_class,
        group_stages,
        lead,
        profile,
        cost,
        slack,
        batch_from,
        first_replica,
        replica_group,
        ready,
        b[0:1],
        b[1 : 1 + replicas],
    )
    clocks = _clocks(f, x, i, y, groups, stages)
    tail = _clocks(f, x + groups * (stages + 1), i, y + groups, groups, stages)
    draft = _clocks(f, x + 2 * groups * (stages + 1), i, y + 2 * groups, groups, stages)
    x += 3 * groups * (stages + 1)
    y += 3 * groups
    queue = _queue(f, x, i, y, rows)
    trial = _queue(f, x + 2 * rows, i, y + 1 + 6 * rows, rows)
    x += 4 * rows
    y += 2 * (1 + 6 * rows)
    alone, left = i[y : y + models], i[y + models : y + 2 * models]
    last_alike = i[y + 2 * models : y + 3 * models]
    y += 3 * models
    state = State(clocks, tail, draft, queue, trial, alone, left, last_alike, i[y : y + 5])
    y += 5
    request, replica = i[y : y + rows], i[y + rows : y + 2 * rows]
    batch, size = i[y + 2 * rows : y + 3 * rows], i[y + 3 * rows : y + 4 * rows]
    begun = Begun(request, replica, batch, size, f[x : x + rows], f[x + rows : x + 2 * rows])
    x += 2 * rows
    y += 4 * rows
    next_due = f[x : x + 1]
    x += 1
    z = x + 3 * rows
    w = y + 3 + 6 * rows
    backlog = Backlog(
        i[y : y + 3],
        i[y + 3 : y + 3 + 3 * rows],
        i[y + 3 + 3 * rows : w],
        f[x:z],
        i[w : w + models],
        i[w + models : w + 2 * models],
        i[w + 3 * models : w + 3 * models + groups],
        i[w + 2 * models : w + 3 * models],
        f[z : z + models],
        f[z + models : z + 2 * models],
        b[1 + replicas : 1 + replicas + models * models].reshape((models, models)),
        f[z + 2 * models : z + 2 * models + 1],
    )
    margin = f[z + 2 * models + 1 : z + 3 * models + 1]
    return Floor(tables, state, begun, next_due, backlog, margin)


@inlined
def _clocks(f: Floats, x: int, i: Ints, y: int, groups: int, stages: int) -> Clocks:
    free = f[x : x + groups * stages].reshape((groups, stages))
    return Clocks(free, f[x + groups * stages : x + groups * (stages + 1)], i[y : y + groups])


@inlined
def _queue(f: Floats, x: int, i: Ints, y: int, rows: int) -> Queue:
    z = y + 1
    return Queue(
        i[y:z],
        i[z : z + rows],
        i[z + rows : z + 2 * rows],
        f[x : x + rows],
        i[z + 2 * rows : z + 3 * rows],
        f[x + rows : x + 2 * rows],
        i[z + 3 * rows : z + 4 * rows],
        i[z + 4 * rows : z + 5 * rows],
        i[z + 5 * rows : z + 6 * rows],
    )
