"""The groups on which one-pass batches and engines' steps take turns: when each has something to do.
Compiled.

One-pass requests keep to dispatch.py; an engine may step where none of them is booked (docs/generation.md).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.clocks import NOBODY, Clocks, Floats, Ints, Tables, copy_clocks, finish_time, later
from placement.compiled import compiled, compiled_apart
from placement.dispatch import EXPIRED, NO_REPLICA, SERVED, State, due_time, launch, offer, shortest_queue
from placement.generation.engine_tables import Answers, World
from placement.generation.first_token import Outlook


class OnePass(NamedTuple):
    """What is noted of one-pass requests."""

    answers: Answers
    busy: Floats  # [G] stage-seconds
    batches: Ints  # [1] begun


class Floor(NamedTuple):
    """One-pass dispatch and engines on the same groups, and when each group next has something to do."""

    tables: Tables
    state: State
    world: World
    outlook: Outlook
    wake: Floats  # [G]
    booked: Ints  # [G] admitted one-pass requests that will begin there
    done: OnePass


@compiled
def has_work(world: World, lane: int) -> bool:
    lanes = world.lanes
    if lanes.in_flight[lane]:
        return False
    if lanes.decoding[lane] > 0 or lanes.prefilling[lane] != NOBODY:
        return True
    waiting: int = world.lines.waiting[world.engines.line[world.engines.lane_engine[lane]]]
    return waiting > 0


@compiled
def rewake(floor: Floor, group: int, now: float, idle: bool) -> None:
    """Set when the group next has something to do; `idle`: lanes that are not in flight may find work now."""
    world = floor.world
    engines, lanes = world.engines, world.lanes
    wake = np.inf
    begin = engines.first_lane[engines.first_of_group[group]]
    for lane in range(begin, engines.first_lane[engines.first_of_group[group + 1]]):
        at = np.inf
        if lanes.in_flight[lane]:
            at = lanes.end[lane]
        elif idle and floor.booked[group] == 0 and has_work(world, lane):
            at = later(now, world.clocks.free[group, 0])
        wake = at if at < wake else wake
    floor.wake[group] = wake


@compiled_apart
def book(floor: Floor, now: float) -> float:
    """Count who is booked on each group; returns when the first of them is due, now or later."""
    queue = floor.state.queue
    for group in range(floor.booked.size):
        floor.booked[group] = 0
    starts = np.inf
    for row in range(queue.length[0]):
        floor.booked[floor.tables.replica_group[queue.replica[row]]] += 1
        due = due_time(floor.tables, queue, row)
        starts = due if due < starts else starts
    for group in range(floor.booked.size):
        rewake(floor, group, now, True)
    return later(starts, now)


@compiled_apart
def offer_one_pass(
    tables: Tables,
    state: State,
    done: OnePass,
    request: int,
    model: int,
    now: float,
    sizes: int,
    overtake: float,
) -> None:
    """A one-pass request under the `deadline` rule."""
    verdict = offer(tables, state, request, model, now, sizes, overtake)
    done.answers.status[request] = verdict.status
    if verdict.dropped != NOBODY:
        done.answers.status[verdict.dropped] = EXPIRED


@compiled_apart
def bind_one_pass(tables: Tables, clocks: Clocks, done: OnePass, request: int, model: int, now: float) -> None:
    """A one-pass request under the `shortest-queue` rule."""
    replica = shortest_queue(tables, clocks, model)
    if replica == NOBODY:
        done.answers.status[request] = NO_REPLICA
    elif finish_time(tables, clocks, replica, model, 0, now) <= now + tables.slack[model]:
        _run_batch(tables, clocks, done, replica, request, model, 0, now)


@compiled_apart
def launch_one_pass(tables: Tables, state: State, done: OnePass, now: float) -> None:
    """Hand over the one-pass batches that are due, noting stage by stage what `launch` will do."""
    queue, draft = state.queue, state.draft
    copy_clocks(tables, state.clocks, draft)
    newest = NOBODY
    for row in range(queue.length[0]):
        if due_time(tables, queue, row) > now:
            continue
        request, model = queue.request[row], queue.model[row]
        if queue.batch[row] > newest:
            newest = queue.batch[row]
            _run_batch(tables, draft, done, queue.replica[row], request, model, queue.size[row], queue.start[row])
            continue
        head = row - 1
        while queue.batch[head] != queue.batch[row]:
            head -= 1
        _copy_answer(done.answers, queue.request[head], request)
    launch(tables, state, now)


@compiled
def _run_batch(
    tables: Tables,
    clocks: Clocks,
    done: OnePass,
    replica: int,
    request: int,
    model: int,
    size: int,
    now: float,
) -> None:
    """dispatch.occupy, noting for the batch's head when it was where."""
    answers = done.answers
    group = tables.replica_group[replica]
    kind, profile = tables.group_class[group], tables.profile[model]
    x = later(now, tables.replica_ready[replica])
    start = later(x, clocks.free[group, 0])
    if tables.replica_parked[replica] and clocks.awake[group] != model:
        clocks.awake[group] = model
        for s in range(tables.stages[group]):
            clocks.free[group, s] = later(start, clocks.free[group, s]) + tables.wake[kind, profile, s]
    for s in range(tables.stages[group]):
        begin = later(x, clocks.free[group, s])
        x = begin + tables.latency[kind, profile, size, s]
        clocks.free[group, s] = x
        answers.stage_start[request, s] = begin
        answers.stage_end[request, s] = x
        done.busy[group] += x - begin
    clocks.drained[group] = x
    answers.status[request] = SERVED
    answers.group[request] = group
    answers.batch[request] = done.batches[0]
    answers.begun[request] = start
    answers.first[request] = x
    answers.finish[request] = x
    done.batches[0] += 1


@compiled
def _copy_answer(answers: Answers, source: int, target: int) -> None:
    answers.group[target] = answers.group[source]
    answers.batch[target] = answers.batch[source]
    answers.begun[target] = answers.begun[source]
    answers.first[target] = answers.first[source]
    answers.finish[target] = answers.finish[source]
    for s in range(answers.stage_start.shape[1]):
        answers.stage_start[target, s] = answers.stage_start[source, s]
        answers.stage_end[target, s] = answers.stage_end[source, s]
