"""Python's door to the compiled dispatch rule, for one-pass requests on the wall clock. The rule is placement's.

Each function takes the three arrays of a FloorMemory, so that a call is cheap. Whoever begins stands in `Begun`.
"""

from __future__ import annotations

import numpy as np

from placement.clocks import NOBODY, Bools, Floats, Ints, copy_clocks, finish_time, later, occupy, start_time
from placement.compiled import compiled, compiled_apart, entry_point
from placement.dispatch import (
    EAGER,
    NO_REPLICA,
    REFUSED,
    SERVED,
    _adopt,
    _copy_row,
    build_schedule,
    due_time,
    insert,
    launch,
    offer_due,
    shortest_queue,
    try_schedules,
)
from router.backlog import admit_open, earliest_open, is_open, place_ahead, place_all, remove
from router.floor_memory import BATCHES, BEGUN, Floor, unpack_floor


@entry_point
def arrive(
    f: Floats, i: Ints, b: Bools, request: int, model: int, now: float, deadline: float, sizes: int, overtake: float
) -> tuple[int, int, int, float]:
    """A newcomer: what is due begins, it is offered, and begins if it can at once. Returns its status, who was
    dropped for it, how many began, and when the next begins."""
    floor = unpack_floor(f, i, b)
    i[BEGUN] = 0
    status, dropped = 0, NOBODY
    for turn in range(2):  # one place to compile it
        _begin(floor, i, now)
        if turn == 0 and not admit_open(floor, i, request, model, now, deadline, sizes):
            place_all(floor, now)
            verdict = offer_due(floor.tables, floor.state, request, model, now, deadline, sizes, overtake)
            status, dropped = verdict.status, verdict.dropped
            _look_ahead(floor)
    return status, dropped, i[BEGUN], floor.next_due[0]


@entry_point
def bind(f: Floats, i: Ints, b: Bools, request: int, model: int, now: float, deadline: float) -> tuple[int, int]:
    """A newcomer under the rule `shortest-queue`: it begins at once on the replica that rule names, or is refused.
    Returns its status, and how many began."""
    floor = unpack_floor(f, i, b)
    tables, clocks, begun = floor.tables, floor.state.clocks, floor.begun
    i[BEGUN] = 0
    replica = shortest_queue(tables, clocks, model)
    if replica == NOBODY:
        return NO_REPLICA, 0
    if finish_time(tables, clocks, replica, model, 0, now) > deadline:
        return REFUSED, 0
    begun.request[0], begun.replica[0], begun.size[0] = request, replica, 0
    begun.batch[0] = i[BATCHES]
    begun.start[0] = start_time(tables, clocks, replica, now)
    begun.end[0] = occupy(tables, clocks, replica, model, 0, now)
    i[BATCHES] += 1
    i[BEGUN] = 1
    return SERVED, 1


@entry_point
def advance(f: Floats, i: Ints, b: Bools, now: float) -> tuple[int, float]:
    """What is due begins. Returns how many began, and when the next begins."""
    floor = unpack_floor(f, i, b)
    i[BEGUN] = 0
    _begin(floor, i, now)
    return i[BEGUN], floor.next_due[0]


@entry_point
def settle(f: Floats, i: Ints, b: Bools, now: float, sizes: int) -> tuple[int, int, float]:
    """Place all who wait anew, after replicas or clocks have changed. Who was admitted may use the margin that was
    kept before its deadline; who finds no place in time even so is left out and stands in `Begun.request`. Returns how
    many, how many began (behind them), and when the next begins."""
    floor = unpack_floor(f, i, b)
    tables, state = floor.tables, floor.state
    queue, trial = state.queue, state.trial
    place_all(floor, now)
    count = queue.length[0]
    for row in range(count):
        _copy_row(queue, row, trial, row)
        trial.deadline[row] += floor.margin[trial.model[row]]
    trial.length[0] = count
    out = 0
    if not try_schedules(tables, state, now, sizes):
        copy_clocks(tables, state.clocks, state.draft)
        build_schedule(tables, state, now, EAGER if sizes > 1 else 0, sizes, True)
        kept = 0
        for row in range(count):
            if trial.batch[row] == NOBODY:
                floor.begun.request[out] = trial.request[row]
                out += 1
            else:
                if kept < row:
                    _copy_row(trial, row, trial, kept)
                kept += 1
        trial.length[0] = kept
    for row in range(trial.length[0]):
        trial.deadline[row] -= floor.margin[trial.model[row]]
    _adopt(tables, state)
    state.totals[4] = 0
    i[BEGUN] = out
    _look_ahead(floor)
    _begin(floor, i, now)
    return out, i[BEGUN] - out, floor.next_due[0]


@entry_point
def displace(
    f: Floats, i: Ints, b: Bools, request: int, model: int, now: float, deadline: float, sizes: int, victims: int
) -> tuple[int, int, float]:
    """Admit a newcomer in place of as few as possible of the first `victims` of `Begun.request`, in that order.
    Returns how many had to go (0: it did not help, nothing changed), how many began, and when the next begins."""
    floor = unpack_floor(f, i, b)
    place_all(floor, now)
    needed = 0
    if _fits_without(floor, request, model, now, deadline, sizes, victims):
        needed = 1
        while needed < victims and not _fits_without(floor, request, model, now, deadline, sizes, needed):
            needed += 1
        if needed == victims:
            _fits_without(floor, request, model, now, deadline, sizes, needed)
        _adopt(floor.tables, floor.state)
        floor.state.totals[0] += 1
        floor.state.totals[4] = 0
    i[BEGUN] = victims
    _look_ahead(floor)
    _begin(floor, i, now)
    return needed, i[BEGUN] - victims, floor.next_due[0]


@compiled_apart
def _fits_without(
    floor: Floor, request: int, model: int, now: float, deadline: float, sizes: int, victims: int
) -> bool:
    """Try a schedule with the newcomer and without so many of the victims."""
    trial = floor.state.trial
    insert(floor.state.queue, trial, request, model, deadline)
    kept = 0
    for row in range(trial.length[0]):
        goes = False
        for victim in range(victims):
            goes = goes or floor.begun.request[victim] == trial.request[row]
        if not goes:
            _copy_row(trial, row, trial, kept)
            kept += 1
    trial.length[0] = kept
    return try_schedules(floor.tables, floor.state, now, sizes)


@entry_point
def correct(
    f: Floats, i: Ints, b: Bools, profiled: Floats, through: Floats, group: int, model: int, factor: float
) -> float:
    """From now on the model takes `factor` times what was profiled ([G, M, B, S], [G, M]) on the group. Returns the
    seconds of a request on the model's fastest group, idle; inf without one."""
    tables = unpack_floor(f, i, b).tables
    for size in range(tables.batch_size.size):
        for s in range(tables.latency.shape[3]):
            tables.latency[group, model, size, s] = profiled[group, model, size, s] * factor
    tables.through[group, model] = through[group, model] * factor
    fastest = np.inf
    for replica in range(tables.first_replica[model], tables.first_replica[model + 1]):
        one = tables.through[tables.replica_group[replica], model]
        fastest = one if one < fastest else fastest
    return fastest


@entry_point
def move(f: Floats, i: Ints, b: Bools, group: int, seconds: float, now: float) -> None:
    """What is under way on the group ends later, or earlier, than reckoned; never before now."""
    floor = unpack_floor(f, i, b)
    last = floor.tables.stages[group] - 1
    for s in range(last + 1):
        floor.state.clocks.free[group, s] = later(floor.state.clocks.free[group, s] + seconds, now)
        floor.state.tail.free[group, s] = later(floor.state.tail.free[group, s] + seconds, now)
    floor.state.clocks.drained[group] = floor.state.clocks.free[group, last]
    floor.state.tail.drained[group] = floor.state.tail.free[group, last]


@entry_point
def take_out(f: Floats, i: Ints, b: Bools, request: int) -> bool:
    """Take a waiting request out; the others keep their places. False if it does not wait."""
    floor = unpack_floor(f, i, b)
    state, queue = floor.state, floor.state.queue
    place = 0
    while place < queue.length[0] and queue.request[place] != request:
        place += 1
    if place == queue.length[0]:
        return remove(floor, request)
    if queue.size[place] == 0:
        state.alone[queue.model[place]] -= 1
    else:
        state.totals[3] -= 1
    for row in range(place, queue.length[0] - 1):
        _copy_row(queue, row + 1, queue, row)
    queue.length[0] -= 1
    state.totals[4] = 0
    _look_ahead(floor)
    if is_open(floor):
        earliest = earliest_open(floor)
        floor.next_due[0] = earliest if earliest < floor.next_due[0] else floor.next_due[0]
    return True


@entry_point
def earliest_finish(f: Floats, i: Ints, b: Bools, model: int, now: float) -> float:
    """When a request that comes now would be done, behind all who wait; inf without a replica."""
    floor = unpack_floor(f, i, b)
    tables, state = floor.tables, floor.state
    place_all(floor, now)
    best = np.inf
    for replica in range(tables.first_replica[model], tables.first_replica[model + 1]):
        clocks = state.tail if state.queue.length[0] > 0 else state.clocks
        finish = finish_time(tables, clocks, replica, model, 0, now)
        best = finish if finish < best else best
    return best


@compiled
def _look_ahead(floor: Floor) -> None:
    queue = floor.state.queue
    first = np.inf
    for row in range(queue.length[0]):
        due = due_time(floor.tables, queue, row)
        first = due if due < first else first
    floor.next_due[0] = first


@compiled
def _begin(floor: Floor, i: Ints, now: float) -> None:
    """Begin what is due."""
    if floor.next_due[0] <= now:
        for turn in range(2):
            if is_open(floor):
                place_ahead(floor, now, NOBODY, np.inf)
            if turn == 0:
                _begin_due(floor, i, now)


@compiled_apart
def _begin_due(floor: Floor, i: Ints, now: float) -> None:
    """Note for each who begins when its batch ends on the clocks as they are, and launch them."""
    tables, state, begun = floor.tables, floor.state, floor.begun
    queue = state.queue
    copy_clocks(tables, state.clocks, state.draft)
    newest = NOBODY
    at = i[BEGUN]
    first = at
    for row in range(queue.length[0]):
        if due_time(tables, queue, row) > now:
            continue
        begun.request[at] = queue.request[row]
        begun.replica[at] = queue.replica[row]
        begun.size[at] = queue.size[row]
        begun.start[at] = queue.start[row]
        if queue.batch[row] > newest:
            newest = queue.batch[row]
            replica, model = queue.replica[row], queue.model[row]
            begun.end[at] = occupy(tables, state.draft, replica, model, queue.size[row], queue.start[row])
            begun.batch[at] = i[BATCHES]
            i[BATCHES] += 1
        else:
            # Its head stands before it; rows behind the queue's end keep their old numbers until here.
            head = at - 1
            back = row - 1
            while queue.batch[back] != queue.batch[row]:
                if due_time(tables, queue, back) <= now:
                    head -= 1
                back -= 1
            begun.end[at] = begun.end[head]
            begun.batch[at] = begun.batch[head]
        at += 1
    i[BEGUN] = at
    if at > first:
        launch(tables, state, now)
    _look_ahead(floor)
