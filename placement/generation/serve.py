"""Serves a workload with a plan that holds generating models (one-pass ones too) on simulated time, step by
step.

The decisions are those of dispatch.py (one-pass), engine.py and first_token.py; this is the loop over events,
and the door: a problem and a plan in, an Outcome out. docs/generation.md states what happens in which order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.clocks import NOBODY, Floats, Ints
from placement.compiled import compiled, entry_point
from placement.dispatch import EXPIRED, NO_REPLICA, SERVED, new_state
from placement.errors import InputError
from placement.generation.engine import begin_step, end_step
from placement.generation.engine_tables import PREEMPTIONS, STEPS, Answers, World, engines_of, first_awake, new_world
from placement.generation.first_token import admission, least_loaded, new_outlook
from placement.generation.floor import (
    Floor,
    OnePass,
    bind_one_pass,
    book,
    has_work,
    launch_one_pass,
    offer_one_pass,
    rewake,
)
from placement.generation.intake import is_asleep, join_back
from placement.outcome import Outcome
from placement.plan import Plan
from placement.problem import Problem
from placement.rules import Rule
from placement.simulator import OVERTAKE_SHARE, QUEUE_CAPACITY
from placement.tables import Catalogue
from placement.workload import Workload

STEP_TOKENS = 512
"""The most tokens of an engine's step, decoded and prefilled."""


class Served(NamedTuple):
    """What a run did; `preemptions` counts sequences sent back to their line."""

    answers: Answers
    busy_s: Floats
    steps: int
    preemptions: int


def simulate_generation(
    problem: Problem,
    plan: Plan,
    workload: Workload,
    rule: Rule,
    max_batch: int,
    catalogue: Catalogue,
    step_tokens: int = STEP_TOKENS,
) -> Outcome:
    """Serve the workload with the plan."""
    served = serve(plan, workload, rule, max_batch, catalogue, step_tokens)
    answers = served.answers
    stages = max((group.pp for group in plan.groups), default=1)
    ended = answers.status == SERVED
    first, finish = (np.where(ended, times + problem.overhead, np.nan) for times in (answers.first, answers.finish))
    busy = served.busy_s / np.array([group.pp for group in plan.groups], np.float64)
    start, end = answers.stage_start[:, :stages], answers.stage_end[:, :stages]
    batch = _number_batches(answers)
    return Outcome(problem, plan, workload, answers.status, answers.group, batch, first, finish, start, end, busy)


def count_met(
    problem: Problem, plan: Plan, workload: Workload, rule: Rule, max_batch: int, catalogue: Catalogue
) -> Ints:
    """Requests answered within their SLO, int64 [models]: for search."""
    met = simulate_generation(problem, plan, workload, rule, max_batch, catalogue).met
    counts: Ints = np.bincount(workload.model[met], minlength=len(problem.models))
    return counts


def _number_batches(answers: Answers) -> Ints:
    """One-pass batches by when they began, then by group, as simulate.py numbers them; NOBODY for others."""
    ran = np.flatnonzero(answers.batch != NOBODY)
    order = ran[np.lexsort((answers.group[ran], answers.begun[ran]))]
    batch = np.full(len(answers.batch), NOBODY, np.int64)
    batch[order] = np.cumsum(np.diff(answers.batch[order], prepend=NOBODY) != 0) - 1
    return batch


def serve(
    plan: Plan,
    workload: Workload,
    rule: Rule,
    max_batch: int,
    catalogue: Catalogue,
    step_tokens: int = STEP_TOKENS,
) -> Served:
    """What each request did, and how many steps it took."""
    if workload.prompt_tokens is None or workload.output_tokens is None:
        raise InputError("the workload has no prompt_tokens and output_tokens, but a model generates")
    early = rule == "shortest-queue"
    tables = catalogue.tables(plan)
    state = new_state(len(plan.groups), catalogue.stages, len(tables.slack), 1 if early else QUEUE_CAPACITY)
    engines = engines_of(plan, catalogue, early)
    state.clocks.awake[:] = state.tail.awake[:] = first_awake(plan, catalogue)
    world = new_world(engines, state.clocks, workload, step_tokens)
    floor = Floor(
        tables,
        state,
        world,
        new_outlook(len(engines.lane_engine)),
        np.full(len(plan.groups), np.inf),
        np.zeros(len(plan.groups), np.int64),
        OnePass(world.answers, world.busy, np.zeros(1, np.int64)),
    )
    sizes = max(int(np.searchsorted(tables.batch_size, max_batch, side="right")), 1)
    _serve(workload.arrival, workload.model, floor, sizes, OVERTAKE_SHARE, QUEUE_CAPACITY, early)
    return Served(world.answers, world.busy, int(world.totals[STEPS]), int(world.totals[PREEMPTIONS]))


@entry_point
def _serve(
    arrival: Floats,
    model: NDArray[np.int32],
    floor: Floor,
    sizes: int,
    overtake: float,
    capacity: int,
    early: bool,
) -> None:
    """Event by event: at one time, one-pass batches begin first, then requests arrive, then groups step."""
    request = 0
    starts = np.inf
    while True:
        now = arrival[request] if request < arrival.size else np.inf
        group = _first_awake(floor, starts if starts < now else now)
        if group != NOBODY:
            _visit(floor, group, floor.wake[group])
        elif starts <= now and starts < np.inf:
            launch_one_pass(floor.tables, floor.state, floor.done, starts)
            starts = book(floor, starts)
        elif request == arrival.size:
            break
        else:
            m: int = np.int64(model[request])  # type: ignore[assignment]
            if floor.world.engines.generates[m]:
                _arrive(floor, request, m, now, capacity, early)
            elif early:
                bind_one_pass(floor.tables, floor.state.clocks, floor.done, request, m, now)
            else:
                offer_one_pass(floor.tables, floor.state, floor.done, request, m, now, sizes, overtake)
                starts = book(floor, now)
            request += 1


@compiled
def _first_awake(floor: Floor, before: float) -> int:
    """The group with something to do first, before this time; of equals the one with fewest tokens; or
    NOBODY."""
    best = NOBODY
    earliest = before
    for group in range(floor.wake.size):
        if floor.wake[group] < earliest:
            earliest = floor.wake[group]
            best = group
        elif best != NOBODY and floor.wake[group] == earliest and _tokens(floor, group) < _tokens(floor, best):
            best = group
    return best


@compiled
def _tokens(floor: Floor, group: int) -> int:
    engines = floor.world.engines
    total = 0
    for engine in range(engines.first_of_group[group], engines.first_of_group[group + 1]):
        total += floor.world.used[engine]
    return total


@compiled
def _visit(floor: Floor, group: int, now: float) -> None:
    """End the group's steps whose time has come; then, if its first stage is free and nobody is booked, begin
    one: of the lane that has waited longest and has work; of engines that are asleep after the others, whose last
    sequence may have failed in trying."""
    world = floor.world
    engines, lanes = world.engines, world.lanes
    begin = engines.first_lane[engines.first_of_group[group]]
    end = engines.first_lane[engines.first_of_group[group + 1]]
    for lane in range(begin, end):
        if lanes.in_flight[lane] and lanes.end[lane] <= now:
            end_step(world, lane)
    began = False
    open_now = floor.booked[group] == 0 and world.clocks.free[group, 0] <= now
    if open_now:
        preempted = world.totals[PREEMPTIONS]
        began = _begin_longest(world, begin, end, now, False)
        if not began and engines.wake.size > 0:
            began = _begin_longest(world, begin, end, now, True)
        if began and floor.state.queue.length[0] > 0:  # what is offered next sees the step
            for s in range(floor.tables.stages[group]):
                floor.state.tail.free[group, s] = world.clocks.free[group, s]
            floor.state.tail.drained[group] = world.clocks.drained[group]
            floor.state.tail.awake[group] = world.clocks.awake[group]
        if world.totals[PREEMPTIONS] > preempted:
            for other in range(floor.wake.size):
                if other != group:
                    rewake(floor, other, now, True)
    rewake(floor, group, now, began or not open_now)


@compiled
def _begin_longest(world: World, begin: int, end: int, now: float, asleep: bool) -> bool:
    """Begin a step of the lane from `begin` to `end` that has waited longest and finds work, of engines that are
    asleep, or of the others."""
    lanes = world.lanes
    waited = -np.inf
    tried = NOBODY
    for _ in range(begin, end):
        best = NOBODY
        for lane in range(begin, end):
            untried = lanes.end[lane] > waited or (lanes.end[lane] == waited and lane > tried)
            if not untried or not has_work(world, lane) or is_asleep(world, world.engines.lane_engine[lane]) != asleep:
                continue
            if best == NOBODY or lanes.end[lane] < lanes.end[best]:
                best = lane
        if best == NOBODY:
            break
        waited = lanes.end[best]
        tried = best
        if begin_step(world, best, now):
            return True
    return False


@compiled
def _arrive(floor: Floor, request: int, model: int, now: float, capacity: int, early: bool) -> None:
    """A request for a generating model: into its line, or not."""
    world, state = floor.world, floor.state
    engines = world.engines
    if engines.first_of_model[model] == engines.first_of_model[model + 1]:
        world.answers.status[request] = NO_REPLICA
        return
    line = model
    if early:
        engine = least_loaded(world, model, world.sequences.prompt[request])
        if engine == NOBODY:
            return
        line = engines.line[engine]
    else:
        clocks = state.tail if state.queue.length[0] > 0 else state.clocks
        status = admission(world, floor.outlook, clocks, request, model, now, capacity)
        world.answers.status[request] = status
        if status != SERVED:
            return
    world.answers.status[request] = EXPIRED  # until its last token is made
    join_back(world, line, request)
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        rewake(floor, engines.group[engines.by_model[i]], now, True)
