"""Admits without placing: of a long queue only the part that can begin soon needs its places worked out.

What is placed, and when, is what placement's rule would place: each alone, by deadline, on the replica that finishes
it first. Who waits in the backlog would be in time wherever the rule put it. Models that share no group, directly or
through others, do not matter to each other: each island is placed as far as it needs.
"""

from __future__ import annotations

import numpy as np

from placement.clocks import NOBODY, Ints, copy_clocks, first_to_finish, later, occupy, start_time
from placement.compiled import compiled, compiled_apart
from placement.dispatch import _copy_row, _place_row, _write_row, due_time
from router.floor_memory import MAY_LEAVE_OPEN, Backlog, Floor

CHUNK = 16
"""How many of an island are placed before it is asked again whether that is enough."""

PAUSE_S = 0.005
"""After one could not be admitted so, the whole schedule is worked out for so long: it may be tight."""

HAIR = 1e-6
"""Of a second, and of a sum: what rounding may make of them."""


@compiled
def is_open(floor: Floor) -> bool:
    """Whether somebody waits without a place."""
    return bool(floor.backlog.bounds[0] < floor.backlog.bounds[1])


@compiled_apart
def admit_open(floor: Floor, i: Ints, request: int, model: int, now: float, deadline: float, sizes: int) -> bool:
    """Admit a newcomer, those due after it without a place where that can be. False: the rule has to be asked."""
    tables, state, backlog = floor.tables, floor.state, floor.backlog
    queue = state.queue
    count, waiting = queue.length[0], backlog.bounds[1] - backlog.bounds[0]
    if i[MAY_LEAVE_OPEN] == 0 or now < backlog.not_before[0] or state.totals[3] > 0 or count == 0:
        return False
    if sizes > 1 and state.alone[model] + 1 >= tables.batch_from[model]:
        return False
    if tables.first_replica[model] == tables.first_replica[model + 1] or count + waiting + 1 >= queue.request.size:
        return False
    if waiting == 0 and backlog.bounds[2] == 0 and queue.deadline[count - 1] <= deadline:
        return False  # the last of all: the rule takes a moment
    island = backlog.island[model]
    _unplace(floor, island, deadline)
    _insert(backlog, request, model, deadline)
    state.alone[model] += 1
    if place_ahead(floor, now, island, _loose_from(floor, island, now)):
        state.totals[0] += 1
        return True
    _unplace(floor, island, deadline)
    remove(floor, request)
    backlog.not_before[0] = now + PAUSE_S
    return False


@compiled_apart
def place_ahead(floor: Floor, now: float, strict: int, loose_from: float) -> bool:
    """Place by deadline, until nobody in the backlog can be handed over before the first who has a place, nor now; on
    the island `strict`, also until all others have deadlines from `loose_from` on. False once one there would be
    late."""
    backlog, queue = floor.backlog, floor.state.queue
    if queue.length[0] == 0:
        copy_clocks(floor.tables, floor.state.clocks, floor.state.tail)
        floor.next_due[0] = np.inf
        backlog.bounds[2] = 0
    _reckon_earliest(floor, now)
    row = kept = backlog.bounds[0]
    is_tight = is_open(floor) and backlog.deadline[row] < loose_from
    lacking = 0
    for island in range(backlog.placed.size):
        is_lacking = backlog.earliest[island] <= later(now, floor.next_due[0]) or (is_tight and island == strict)
        backlog.placed[island] = 0 if is_lacking else NOBODY
        lacking += is_lacking
    in_time = True
    while row < backlog.bounds[1] and lacking > 0:
        model = backlog.model[row]
        island = backlog.island[model]
        placed = backlog.placed[island]
        if placed != NOBODY and placed % CHUNK == 0 and (island != strict or backlog.deadline[row] >= loose_from):
            _reckon_earliest(floor, now)
            if backlog.earliest[island] > later(now, floor.next_due[0]):
                placed = backlog.placed[island] = NOBODY
                lacking -= 1
        if placed == NOBODY:
            if kept < row:
                _copy(backlog, row, kept)
            kept += 1
        elif _place(floor, row, now, np.inf if island != strict else backlog.deadline[row]):
            backlog.placed[island] += 1
            if backlog.of_model[model] == 0:
                _reckon_earliest(floor, now)
                if backlog.earliest[island] == np.inf:  # nobody there is left
                    backlog.placed[island] = NOBODY
                    lacking -= 1
        else:
            in_time = False
            break
        row += 1
    first = backlog.bounds[0] + row - kept
    if kept < row:
        while kept > backlog.bounds[0]:
            row -= 1
            kept -= 1
            _copy(backlog, kept, row)
    backlog.bounds[0] = first
    return in_time


@compiled
def place_all(floor: Floor, now: float) -> None:
    """Whoever waits gets a place, and the queue is by deadline again."""
    while is_open(floor):
        row = floor.backlog.bounds[0]
        if floor.state.queue.length[0] == 0:
            copy_clocks(floor.tables, floor.state.clocks, floor.state.tail)
        _place(floor, row, now, np.inf)
        floor.backlog.bounds[0] += 1
    if floor.backlog.bounds[2]:
        _sort(floor)


@compiled_apart
def remove(floor: Floor, request: int) -> bool:
    """Take one out of the backlog. False if it is not there."""
    backlog = floor.backlog
    row = backlog.bounds[0]
    while row < backlog.bounds[1] and backlog.request[row] != request:
        row += 1
    if row == backlog.bounds[1]:
        return False
    backlog.of_model[backlog.model[row]] -= 1
    floor.state.alone[backlog.model[row]] -= 1
    for behind in range(row + 1, backlog.bounds[1]):
        _copy(backlog, behind, behind - 1)
    backlog.bounds[1] -= 1
    return True


@compiled
def earliest_open(floor: Floor) -> float:
    """Before this nobody in the backlog is due."""
    _reckon_earliest(floor, -np.inf)
    first = np.inf
    for island in range(floor.backlog.earliest.size):
        first = floor.backlog.earliest[island] if floor.backlog.earliest[island] < first else first
    return first


@compiled
def _reckon_earliest(floor: Floor, now: float) -> None:
    """Of each island, before when nobody there is due who has no place."""
    tables, tail, backlog = floor.tables, floor.state.tail, floor.backlog
    for island in range(backlog.earliest.size):
        backlog.earliest[island] = np.inf
    for model in range(backlog.of_model.size):
        if backlog.of_model[model] > 0:
            island = backlog.island[model]
            for replica in range(tables.first_replica[model], tables.first_replica[model + 1]):
                group = tables.replica_group[replica]
                due = later(now, tail.free[group, 0]) - tables.lead[group]
                backlog.earliest[island] = due if due < backlog.earliest[island] else backlog.earliest[island]


@compiled
def _loose_from(floor: Floor, island: int, now: float) -> float:
    """When everybody in the backlog of an island is done at the latest. The replica that finishes a request first does
    so no later than its model's groups would on average, if they had to do all that shares one of them."""
    tables, tail, backlog = floor.tables, floor.state.tail, floor.backlog
    for model in range(backlog.of_model.size):
        backlog.longest[model] = 0.0
        if backlog.island[model] == island and backlog.of_model[model] > 0:
            for replica in range(tables.first_replica[model], tables.first_replica[model + 1]):
                kind = tables.group_class[tables.replica_group[replica]]
                through = tables.through[kind, tables.profile[model]]
                backlog.longest[model] = later(backlog.longest[model], through * (1 + HAIR))
    latest = -np.inf
    for model in range(backlog.of_model.size):
        if backlog.island[model] != island or backlog.of_model[model] == 0:
            continue
        work = 0.0
        for other in range(backlog.of_model.size):
            if backlog.shares[model, other]:
                work += backlog.of_model[other] * backlog.longest[other]
        for replica in range(tables.first_replica[model], tables.first_replica[model + 1]):
            work += later(now, tail.drained[tables.replica_group[replica]])
        groups = tables.first_replica[model + 1] - tables.first_replica[model]
        latest = later(latest, work / groups + backlog.longest[model])
    return latest + HAIR


@compiled_apart
def _place(floor: Floor, row: int, now: float, deadline: float) -> bool:
    """Give a row of the backlog its place behind all that have one; the caller takes it out. False: it is late."""
    tables, tail, backlog = floor.tables, floor.state.tail, floor.backlog
    queue, totals = floor.state.queue, floor.state.totals
    model, count = backlog.model[row], queue.length[0]
    replica = first_to_finish(tables, tail, model, now, deadline)
    if replica == NOBODY:
        return False
    start = start_time(tables, tail, replica, now)
    occupy(tables, tail, replica, model, 0, now)
    if count > 0 and queue.deadline[count - 1] > backlog.deadline[row]:
        backlog.bounds[2] = 1
    _write_row(queue, count, backlog.request[row], model, backlog.deadline[row])
    _place_row(queue, count, replica, start, totals[2], 0)
    totals[2] += 1
    queue.length[0] += 1
    backlog.of_model[model] -= 1
    due = due_time(tables, queue, count)
    floor.next_due[0] = due if due < floor.next_due[0] else floor.next_due[0]
    return True


@compiled_apart
def _unplace(floor: Floor, island: int, deadline: float) -> None:
    """Who is due on the island at a time or later loses its place, and waits in the backlog."""
    tables, queue, tail, backlog = floor.tables, floor.state.queue, floor.state.tail, floor.backlog
    going = 0
    for row in range(queue.length[0]):
        going += queue.deadline[row] >= deadline and backlog.island[queue.model[row]] == island
    if going == 0:
        return
    if backlog.bounds[1] + going > backlog.request.size:
        _centre(backlog)
    # From behind, both lines merged: of equals, those that had a place go first.
    low, high = backlog.bounds[1] - 1, backlog.bounds[1] - 1 + going
    backlog.bounds[1] += going
    for row in range(queue.length[0] - 1, -1, -1):
        model = queue.model[row]
        if queue.deadline[row] >= deadline and backlog.island[model] == island:
            while low >= backlog.bounds[0] and backlog.deadline[low] >= queue.deadline[row]:
                _copy(backlog, low, high)
                low -= 1
                high -= 1
            _write(backlog, high, queue.request[row], model, queue.deadline[row])
            high -= 1
            backlog.of_model[model] += 1
    for group in range(backlog.group_island.size):
        if backlog.group_island[group] == island:
            tail.drained[group] = floor.state.clocks.drained[group]
            for s in range(tables.stages[group]):
                tail.free[group, s] = floor.state.clocks.free[group, s]
    kept = 0
    floor.next_due[0] = np.inf
    for row in range(queue.length[0]):
        model = queue.model[row]
        if backlog.island[model] == island:
            if queue.deadline[row] >= deadline:
                continue
            occupy(tables, tail, queue.replica[row], model, 0, queue.start[row])
        due = due_time(tables, queue, row)
        floor.next_due[0] = due if due < floor.next_due[0] else floor.next_due[0]
        if kept < row:
            _copy_row(queue, row, queue, kept)
        kept += 1
    queue.length[0] = kept


@compiled_apart
def _sort(floor: Floor) -> None:
    """Bring the queue by deadline (of equals who came first) from what is so on each island."""
    queue, trial, backlog = floor.state.queue, floor.state.trial, floor.backlog
    first, last = backlog.placed, floor.state.last_alike
    for island in range(first.size):
        first[island] = NOBODY
    for row in range(queue.length[0]):
        _copy_row(queue, row, trial, row)
        island = backlog.island[queue.model[row]]
        if first[island] == NOBODY:
            first[island] = row
        else:
            trial.next_alike[last[island]] = row
        last[island] = row
        trial.next_alike[row] = NOBODY
    for row in range(queue.length[0]):
        best = NOBODY
        for island in range(first.size):
            one = first[island]
            if one == NOBODY:
                continue
            if best == NOBODY or trial.deadline[one] < trial.deadline[first[best]]:
                best = island
            elif trial.deadline[one] == trial.deadline[first[best]]:
                best = island if trial.request[one] < trial.request[first[best]] else best
        _copy_row(trial, first[best], queue, row)
        queue.batch[row] = row
        first[best] = trial.next_alike[first[best]]
    floor.state.totals[2] = queue.length[0]
    backlog.bounds[2] = 0


@compiled
def _insert(backlog: Backlog, request: int, model: int, deadline: float) -> None:
    """At its place by deadline, behind equals; the shorter side makes room."""
    if backlog.bounds[0] == 0 or backlog.bounds[1] == backlog.request.size:
        _centre(backlog)
    low, high = backlog.bounds[0], backlog.bounds[1]
    while low < high:
        middle = (low + high) // 2
        if backlog.deadline[middle] <= deadline:
            low = middle + 1
        else:
            high = middle
    if low - backlog.bounds[0] < backlog.bounds[1] - low:
        for row in range(backlog.bounds[0], low):
            _copy(backlog, row, row - 1)
        backlog.bounds[0] -= 1
        low -= 1
    else:
        for row in range(backlog.bounds[1], low, -1):
            _copy(backlog, row - 1, row)
        backlog.bounds[1] += 1
    _write(backlog, low, request, model, deadline)
    backlog.of_model[model] += 1


@compiled_apart
def _centre(backlog: Backlog) -> None:
    """Let there be room for a whole queue on either side: the rows take up a third at most."""
    count = backlog.bounds[1] - backlog.bounds[0]
    first = backlog.request.size // 3
    if first < backlog.bounds[0]:
        for row in range(count):
            _copy(backlog, backlog.bounds[0] + row, first + row)
    else:
        for row in range(count - 1, -1, -1):
            _copy(backlog, backlog.bounds[0] + row, first + row)
    backlog.bounds[0], backlog.bounds[1] = first, first + count


@compiled
def _copy(backlog: Backlog, row: int, place: int) -> None:
    _write(backlog, place, backlog.request[row], backlog.model[row], backlog.deadline[row])


@compiled
def _write(backlog: Backlog, row: int, request: int, model: int, deadline: float) -> None:
    backlog.request[row] = request
    backlog.model[row] = model
    backlog.deadline[row] = deadline
