"""The decision "which replica, when, in which batch, and can it make the deadline": compiled, and the only copy.

The simulator calls it on simulated time, the live router on the wall clock. It sees arrivals, deadlines, profiles
and stage clocks; never a later arrival. docs/simulator.md states the rules; `reference.py` restates them plainly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.clocks import (
    NOBODY,
    Clocks,
    Floats,
    Ints,
    Tables,
    clear_time,
    copy_clocks,
    finish_time,
    first_to_finish,
    later,
    new_clocks,
    occupy,
    start_time,
)
from placement.compiled import compiled, compiled_apart

SERVED, REFUSED, EXPIRED, NO_REPLICA, QUEUE_FULL, CANCELLED, FAILED = range(7)
REASONS = ("served", "refused", "expired", "no-replica", "queue-full", "cancelled", "failed")

# How `build_schedule` forms batches: a cap of 0 or more allows sizes up to that index; this one lets a batch form
# where it clears the queue sooner: in at most this share of the time that the next smaller choice takes.
EAGER = -1
EAGER_SHARE = 0.97


class Queue(NamedTuple):
    """Admitted requests that have not begun, by deadline, each with its place in the schedule. One more than
    `length[0]` rows may be in use while a newcomer is tried."""

    length: Ints  # [1]
    request: Ints
    model: Ints
    deadline: Floats
    replica: Ints
    start: Floats
    batch: Ints  # number of the batch within this schedule
    size: Ints  # index of the batch's size in Tables.batch_size
    next_alike: Ints  # the next row of the same model


class State(NamedTuple):
    """All that dispatch remembers. `tail`: the clocks after the schedule; `trial`, `draft`: room to try another."""

    clocks: Clocks
    tail: Clocks
    draft: Clocks
    queue: Queue
    trial: Queue
    alone: Ints  # [M] rows of each model in the queue that are not part of a larger batch
    left: Ints  # [M] room to count rows not yet placed
    last_alike: Ints  # [M] room to link rows of one model
    totals: Ints  # [5] admitted, overtaken, a number above all batches of the schedule, rows in batches of several,
    # and whether a newcomer was refused since a batch last began


class Verdict(NamedTuple):
    """What became of a newcomer, and who was dropped for it (or NOBODY)."""

    status: int
    dropped: int


def new_state(groups: int, stages: int, models: int, capacity: int) -> State:
    """Idle groups and an empty queue that may hold `capacity` requests."""

    def clocks() -> Clocks:
        return new_clocks(groups, stages)

    def queue() -> Queue:
        rows = capacity + 1
        request, model, replica, batch, size, next_alike = (np.zeros(rows, np.int64) for _ in range(6))
        deadline, start = np.zeros(rows), np.zeros(rows)
        length = np.zeros(1, np.int64)
        return Queue(length, request, model, deadline, replica, start, batch, size, next_alike)

    alone, left, last_alike = (np.zeros(models, np.int64) for _ in range(3))
    totals = np.zeros(5, np.int64)
    return State(clocks(), clocks(), clocks(), queue(), queue(), alone, left, last_alike, totals)


@compiled
def shortest_queue(tables: Tables, clocks: Clocks, model: int) -> int:
    """AlpaServe's choice: the replica whose group's last stage is free first (ties: first in the plan), or NOBODY."""
    best = NOBODY
    best_free = np.inf
    loading = tables.loading[0]
    for replica in range(tables.first_replica[model], tables.first_replica[model + 1]):
        free = clocks.drained[tables.replica_group[replica]]
        if loading:
            free = later(free, tables.replica_ready[replica])
        if free < best_free:
            best_free = free
            best = replica
    return best


@compiled
def due_time(tables: Tables, queue: Queue, row: int) -> float:
    """When the batch of a row is handed over to its group."""
    return float(queue.start[row] - tables.lead[tables.replica_group[queue.replica[row]]])


@compiled
def launch(tables: Tables, state: State, now: float) -> int:
    """Hand over every batch that is due. Returns how many requests began: their rows now stand behind the
    queue's end (from `queue.length[0]` on), in their old order, for the caller to read before the next call."""
    queue = state.queue
    began = 0
    kept = 0
    newest = NOBODY
    for row in range(queue.length[0]):
        if due_time(tables, queue, row) > now:
            if kept < row:
                _copy_row(queue, row, queue, kept)
            kept += 1
            continue
        if queue.batch[row] > newest:  # the first row of a batch: heads stand in the order of their batches
            newest = queue.batch[row]
            occupy(tables, state.clocks, queue.replica[row], queue.model[row], queue.size[row], queue.start[row])
        _copy_row(queue, row, state.trial, began)
        if queue.size[row] == 0:
            state.alone[queue.model[row]] -= 1
        else:
            state.totals[3] -= 1
        began += 1
    for row in range(began):
        _copy_row(state.trial, row, queue, kept + row)
    queue.length[0] = kept
    if began > 0:
        state.totals[4] = 0
    return began


@compiled
def offer(tables: Tables, state: State, request: int, model: int, now: float, sizes: int, overtake: float) -> Verdict:
    """A newcomer under the `deadline` rule: admitted if a schedule exists in which it and all who wait finish in
    time; else, if dropping one waiting request that costs more makes room, that one is dropped; else refused.

    `sizes`: how many of the batch sizes may be used; `overtake`: the largest share of admitted requests that may be
    dropped later. Call `launch` for the same `now` before.
    """
    return offer_due(tables, state, request, model, now, now + tables.slack[model], sizes, overtake)


@compiled
def offer_due(
    tables: Tables, state: State, request: int, model: int, now: float, deadline: float, sizes: int, overtake: float
) -> Verdict:
    """`offer` for a request with a deadline of its own: when its last stage must be done."""
    queue = state.queue
    count = queue.length[0]
    if tables.first_replica[model] == tables.first_replica[model + 1]:
        return Verdict(NO_REPLICA, NOBODY)
    if count + 1 >= queue.request.size:
        return Verdict(QUEUE_FULL, NOBODY)
    if count == 0:
        copy_clocks(tables, state.clocks, state.tail)
    last = count == 0 or queue.deadline[count - 1] <= deadline
    if sizes == 1 or state.alone[model] + 1 < tables.batch_from[model]:
        # Too few of its model wait alone to make a batch: those due before it keep their places.
        if last:
            replica = first_to_finish(tables, state.tail, model, now, deadline)
            if replica != NOBODY:
                start = start_time(tables, state.tail, replica, now)
                occupy(tables, state.tail, replica, model, 0, now)
                _write_row(queue, count, request, model, deadline)
                _place_row(queue, count, replica, start, state.totals[2], 0)
                state.totals[2] += 1
                queue.length[0] = count + 1
                state.alone[model] += 1
                state.totals[0] += 1
                return Verdict(SERVED, NOBODY)
        elif state.totals[3] == 0 and _place_alone(tables, state, request, model, deadline, now):
            _adopt(tables, state)
            state.totals[0] += 1
            return Verdict(SERVED, NOBODY)
    if state.totals[4]:  # what did not help one newcomer helps no other until a batch has begun
        return Verdict(REFUSED, NOBODY)
    insert(queue, state.trial, request, model, deadline)
    fits = sizes > 1 and try_schedules(tables, state, now, sizes)
    dropped = NOBODY
    if not fits and state.totals[1] + 1 <= overtake * state.totals[0]:
        dropped = _drop_costliest(tables, state, request, model)
        fits = dropped != NOBODY and try_schedules(tables, state, now, sizes)
        state.totals[1] += fits
    if not fits:
        state.totals[4] = 1
        return Verdict(REFUSED, NOBODY)
    _adopt(tables, state)
    state.totals[0] += 1
    return Verdict(SERVED, dropped)


@compiled_apart
def _place_alone(tables: Tables, state: State, request: int, model: int, deadline: float, now: float) -> bool:
    """Place the newcomer and all due after it anew, each alone, behind those due before it, into `trial`. False once
    one would miss its deadline."""
    trial = state.trial
    insert(state.queue, trial, request, model, deadline)
    copy_clocks(tables, state.clocks, state.draft)
    row = 0
    while trial.request[row] != request:
        _copy_row(state.queue, row, trial, row)
        occupy(tables, state.draft, trial.replica[row], trial.model[row], 0, trial.start[row])
        row += 1
    for after in range(row, trial.length[0]):
        replica = first_to_finish(tables, state.draft, trial.model[after], now, trial.deadline[after])
        if replica == NOBODY:
            return False
        start = start_time(tables, state.draft, replica, now)
        _place_row(trial, after, replica, start, after, 0)
        occupy(tables, state.draft, replica, trial.model[after], 0, now)
    for before in range(row):
        trial.batch[before] = before
    return True


@compiled
def build_schedule(tables: Tables, state: State, now: float, cap: int, sizes: int, may_leave: bool) -> bool:
    """Place the requests of `trial`, by deadline, on the `draft` clocks (which it advances): each on the replica that
    finishes it first, with others of its model in one batch as `cap` says. False once one would miss its deadline;
    with `may_leave` such a one is left out (its batch is NOBODY) and the others go on."""
    trial, clocks = state.trial, state.draft
    count = trial.length[0]
    _link_alike(state)
    batches = 0
    for row in range(count):
        if trial.batch[row] != NOBODY:
            continue
        model = trial.model[row]
        replica = first_to_finish(tables, clocks, model, now, trial.deadline[row])
        if replica == NOBODY:
            if may_leave:
                state.left[model] -= 1
                continue
            return False
        size = 0
        if cap != 0 and state.left[model] > 1:
            size = _batch_size(tables, state, replica, model, trial.deadline[row], now, cap, sizes)
        start = start_time(tables, clocks, replica, now)
        occupy(tables, clocks, replica, model, size, now)
        member = row
        for _ in range(tables.batch_size[size]):
            _place_row(trial, member, replica, start, batches, size)
            member = trial.next_alike[member]
        state.left[model] -= tables.batch_size[size]
        batches += 1
    return True


@compiled
def _link_alike(state: State) -> None:
    """Unplace all rows of `trial`, count those of each model, and link each to the next of its model."""
    trial = state.trial
    for row in range(trial.length[0]):
        state.left[trial.model[row]] = 0
    for row in range(trial.length[0]):
        model = trial.model[row]
        if state.left[model] > 0:
            trial.next_alike[state.last_alike[model]] = row
        state.left[model] += 1
        state.last_alike[model] = row
        trial.batch[row] = NOBODY


@compiled
def _batch_size(
    tables: Tables, state: State, replica: int, model: int, deadline: float, now: float, cap: int, sizes: int
) -> int:
    """The size (an index) of the batch led by a request with this deadline: under a cap the largest that keeps the
    deadline; EAGER the smallest that no larger one beats clearly in clearing all who wait for the model."""
    group = tables.replica_group[replica]
    kind, profile = tables.group_class[group], tables.profile[model]
    waiting = state.left[model]
    best = 0
    best_clear = np.inf
    for size in range(sizes if cap == EAGER else cap + 1):
        if tables.batch_size[size] > waiting:
            break
        if tables.latency[kind, profile, size, 0] == np.inf:
            continue
        if size > 0 and finish_time(tables, state.draft, replica, model, size, now) > deadline:
            continue
        if cap != EAGER:
            best = size
            continue
        clear = clear_time(tables, kind, profile, size, tables.stages[group], waiting)
        if clear < EAGER_SHARE * best_clear:
            best_clear = clear
            best = size
    return best


@compiled_apart
def try_schedules(tables: Tables, state: State, now: float, sizes: int) -> bool:
    """The first schedule that keeps every deadline: eager batches, none, pairs, the largest possible."""
    for attempt in range(4 if sizes > 1 else 1):
        cap = 0 if sizes == 1 else (EAGER, 0, 1, sizes - 1)[attempt]
        copy_clocks(tables, state.clocks, state.draft)
        if build_schedule(tables, state, now, cap, sizes, False):
            return True
    return False


@compiled_apart
def _adopt(tables: Tables, state: State) -> None:
    """Make the tried schedule the one that holds."""
    queue, trial = state.queue, state.trial
    state.totals[3] = 0
    for row in range(queue.length[0]):
        state.alone[queue.model[row]] = 0
    for row in range(trial.length[0]):
        state.alone[trial.model[row]] = 0
    for row in range(trial.length[0]):
        _copy_row(trial, row, queue, row)
        if trial.size[row] == 0:
            state.alone[trial.model[row]] += 1
        else:
            state.totals[3] += 1
    queue.length[0] = state.totals[2] = trial.length[0]
    copy_clocks(tables, state.draft, state.tail)


@compiled
def insert(queue: Queue, trial: Queue, request: int, model: int, deadline: float) -> None:
    """The queue with the newcomer at its place by deadline (behind equals), into `trial`."""
    count = queue.length[0]
    place = count
    while place > 0 and queue.deadline[place - 1] > deadline:
        place -= 1
    for row in range(place):
        _write_row(trial, row, queue.request[row], queue.model[row], queue.deadline[row])
    _write_row(trial, place, request, model, deadline)
    for row in range(place, count):
        _write_row(trial, row + 1, queue.request[row], queue.model[row], queue.deadline[row])
    trial.length[0] = count + 1


@compiled
def _drop_costliest(tables: Tables, state: State, request: int, model: int) -> int:
    """Take the costliest request out of `trial`, if it costs more than the newcomer; returns it, or NOBODY."""
    trial = state.trial
    worst = NOBODY
    worst_cost = tables.cost[model]
    for row in range(trial.length[0]):
        if trial.request[row] != request and tables.cost[trial.model[row]] > worst_cost:
            worst_cost = tables.cost[trial.model[row]]
            worst = row
    if worst == NOBODY:
        return NOBODY
    dropped = trial.request[worst]
    for row in range(worst, trial.length[0] - 1):
        _copy_row(trial, row + 1, trial, row)
    trial.length[0] -= 1
    return int(dropped)


@compiled
def _write_row(queue: Queue, row: int, request: int, model: int, deadline: float) -> None:
    queue.request[row] = request
    queue.model[row] = model
    queue.deadline[row] = deadline


@compiled
def _place_row(queue: Queue, row: int, replica: int, start: float, batch: int, size: int) -> None:
    queue.replica[row] = replica
    queue.start[row] = start
    queue.batch[row] = batch
    queue.size[row] = size


@compiled
def _copy_row(source: Queue, row: int, target: Queue, place: int) -> None:
    _write_row(target, place, source.request[row], source.model[row], source.deadline[row])
    _place_row(target, place, source.replica[row], source.start[row], source.batch[row], source.size[row])
