"""Serves a workload with a plan that holds generating models (one-pass ones too) on simulated time, step by step.

The decisions are those of dispatch.py (one-pass), engine.py and first_token.py; this is the loop over events, and the
door: a problem and a plan in, an Outcome out. docs/generation.md states what happens in which order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.compiled import compiled, compiled_apart, entry_point
from placement.dispatch import (
    EXPIRED,
    NO_REPLICA,
    NOBODY,
    REFUSED,
    SERVED,
    Clocks,
    Floats,
    Ints,
    State,
    Tables,
    finish_time,
    later,
    launch,
    new_state,
    offer,
    shortest_queue,
)
from placement.engine import (
    PREEMPTIONS,
    STEPS,
    Answers,
    Engines,
    Lanes,
    Lines,
    Sequences,
    World,
    begin_step,
    end_step,
    join_back,
)
from placement.errors import InputError
from placement.first_token import Outlook, admission, least_loaded, new_outlook
from placement.outcome import Outcome
from placement.plan import Plan
from placement.problem import MAX_SLO_S, Problem
from placement.simulator import OVERTAKE_SHARE, QUEUE_CAPACITY, Rule
from placement.tables import Catalogue
from placement.workload import Workload

STEP_TOKENS = 512
"""The most tokens of an engine's step, decoded and prefilled."""

BATCHES = 0


class Floor(NamedTuple):
    """One-pass dispatch and engines on the same groups, and when each group next has something to do."""

    tables: Tables
    state: State
    world: World
    outlook: Outlook
    wake: Floats  # [G]
    booked: Ints  # [G] admitted one-pass requests that will begin there
    counts: Ints  # [1] one-pass batches begun


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
    return Outcome(
        problem, plan, workload, answers.status, answers.group, answers.batch, first, finish, start, end, busy
    )


def count_met(
    problem: Problem, plan: Plan, workload: Workload, rule: Rule, max_batch: int, catalogue: Catalogue
) -> Ints:
    """Requests answered within their SLO, int64 [models]: for search."""
    met = simulate_generation(problem, plan, workload, rule, max_batch, catalogue).met
    counts: Ints = np.bincount(workload.model[met], minlength=len(problem.models))
    return counts


def serve(
    plan: Plan, workload: Workload, rule: Rule, max_batch: int, catalogue: Catalogue, step_tokens: int = STEP_TOKENS
) -> Served:
    """What each request did, and how many steps it took."""
    if workload.prompt_tokens is None or workload.output_tokens is None:
        raise InputError("the workload has no prompt_tokens and output_tokens, but a model generates")
    early = rule == "shortest-queue"
    tables = catalogue.tables(plan)
    state = new_state(len(plan.groups), catalogue.stages, len(tables.slack), 1 if early else QUEUE_CAPACITY)
    engines = engines_of(plan, catalogue, early)
    world = new_world(engines, state.clocks, workload, step_tokens)
    floor = Floor(
        tables,
        state,
        world,
        new_outlook(len(engines.lane_engine)),
        np.full(len(plan.groups), np.inf),
        np.zeros(len(plan.groups), np.int64),
        np.zeros(1, np.int64),
    )
    sizes = max(int(np.searchsorted(tables.batch_size, max_batch, side="right")), 1)
    _serve(workload.arrival, workload.model, floor, sizes, OVERTAKE_SHARE, QUEUE_CAPACITY, early)
    return Served(world.answers, world.busy, int(world.totals[STEPS]), int(world.totals[PREEMPTIONS]))


def engines_of(plan: Plan, catalogue: Catalogue, early: bool) -> Engines:
    """The arrays of the plan's engines. `early`: bound at arrival, so each engine has its own line and no goals."""
    models = catalogue.problem.models
    found = [
        (index, catalogue.model_index[name])
        for index, group in enumerate(plan.groups)
        for name in sorted(group.models, key=catalogue.model_index.__getitem__)
        if models[catalogue.model_index[name]].generates
    ]
    group, model = np.array(found, np.int64).reshape(-1, 2).T
    cost = np.zeros((len(found), catalogue.stages, 6))
    capacity = np.zeros(len(found), np.int64)
    for e, (g, m) in enumerate(found):
        entry = catalogue.entries[catalogue.class_of(plan.groups[g])][catalogue.profile_of_model[m]]
        if entry is None or entry.generation is None:
            raise InputError(f"groups[{g}]: {models[m].name!r} has no generation costs for {plan.groups[g].shape}")
        for s, step in enumerate(entry.generation.stages):
            cost[e, s] = (
                step.fixed, step.weights, step.prefill_token, step.prefill_context, step.sequence, step.cached_token
            )  # fmt: skip
        kv_bytes = plan.groups[g].kv_bytes.get(models[m].name, 0)
        capacity[e] = min(int(kv_bytes / size) for size in entry.generation.kv_bytes_per_token)
    stages = np.array([plan.groups[g].pp for g, _ in found], np.int64)
    line = np.arange(len(found)) if early else model.copy()
    line_capacity = np.zeros(max(len(found), len(models)), np.int64)
    np.maximum.at(line_capacity, line, capacity)
    overhead = catalogue.problem.overhead
    return Engines(
        cost=cost,
        stages=stages,
        capacity=capacity,
        group=group.copy(),
        model=model.copy(),
        line=line,
        line_capacity=line_capacity,
        first_lane=_starts(stages),
        lane_engine=np.repeat(np.arange(len(found)), stages),
        first_of_group=_starts(np.bincount(group, minlength=len(plan.groups))),
        first_of_model=_starts(np.bincount(model, minlength=len(models))),
        by_model=np.argsort(model, kind="stable"),
        generates=np.array([entry.generates for entry in models], np.bool_),
        slack=np.array([np.inf if early else entry.slo.first_token - overhead for entry in models]),
        finish_slack=np.array([np.inf if early else entry.slo.end_to_end - overhead for entry in models]),
        tpot=np.array([MAX_SLO_S if early else min(entry.slo.tpot, MAX_SLO_S) for entry in models]),
    )


def new_world(engines: Engines, clocks: Clocks, workload: Workload, step_tokens: int) -> World:
    """Idle engines, and requests that have not come."""
    assert workload.prompt_tokens is not None
    assert workload.output_tokens is not None
    count, lanes, lines = len(workload), len(engines.lane_engine), len(engines.line_capacity)
    stages = clocks.free.shape[1]

    def ints(size: int, value: int = 0) -> Ints:
        return np.full(size, value, np.int64)

    return World(
        engines=engines,
        lanes=Lanes(
            end=np.zeros(lanes),
            in_flight=np.zeros(lanes, np.bool_),
            steps=ints(lanes),
            decoding=ints(lanes),
            fresh=ints(lanes),
            member=np.zeros((lanes, step_tokens), np.int64),
            prefilling=ints(lanes, NOBODY),
            cached=ints(lanes),
            next_end=ints(lanes, -1),
            due=np.full(lanes, np.inf),
            slowest=np.zeros(lanes),
            stage_begin=np.zeros((lanes, stages)),
            stage_end=np.zeros((lanes, stages)),
        ),
        sequences=Sequences(
            np.maximum(workload.prompt_tokens, 1).astype(np.int64),
            np.maximum(workload.output_tokens, 1).astype(np.int64),
            np.full(count, np.inf),
            np.full(count, np.inf),
            *(ints(count) for _ in range(6)), np.zeros(count), *(ints(count) for _ in range(2)),
        ),
        lines=Lines(ints(lines, NOBODY), ints(lines, NOBODY), ints(lines), ints(lines)),
        answers=Answers(
            np.full(count, REFUSED, np.int8),
            *(ints(count, NOBODY) for _ in range(2)),
            *(np.full(count, np.nan) for _ in range(2)),
            *(np.full((count, stages), np.nan) for _ in range(2)),
        ),
        clocks=clocks,
        used=ints(len(engines.capacity)),
        running=ints(len(engines.capacity)),
        learned=np.tile([0,0,0,0,1.0],(len(engines.tpot), 1)),
        busy=np.zeros(len(clocks.awake)),
        totals=ints(3),
        step_tokens=step_tokens,
    )


def _starts(counts: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


@entry_point
def _serve(
    arrival: Floats, model: NDArray[np.int32], floor: Floor, sizes: int, overtake: float, capacity: int, early: bool
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
            _launch(floor, starts)
            starts = _book(floor, starts)
        elif request == arrival.size:
            break
        elif floor.world.engines.generates[model[request]]:
            _arrive(floor, request, model[request], now, capacity, early)
            request += 1
        elif early:
            _bind(floor, request, model[request], now)
            request += 1
        else:
            _offer(floor, model, request, now, sizes, overtake)
            starts = _book(floor, now)
            request += 1


@compiled
def _first_awake(floor: Floor, before: float) -> int:
    """The group with something to do first, before this time; of equals the one with fewest tokens; or NOBODY."""
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
    """End the group's steps whose time has come; then, if its first stage is free and nobody is booked, begin one: of
    the lane that has waited longest and has work."""
    world = floor.world
    engines, lanes = world.engines, world.lanes
    begin = engines.first_lane[engines.first_of_group[group]]
    end = engines.first_lane[engines.first_of_group[group + 1]]
    for lane in range(begin, end):
        if lanes.in_flight[lane] and lanes.end[lane] <= now:
            end_step(world, lane)
    began = False
    if floor.booked[group] == 0 and world.clocks.free[group, 0] <= now:
        preempted = world.totals[PREEMPTIONS]
        waited = -np.inf
        tried = NOBODY
        for _ in range(begin, end):
            best = NOBODY
            for lane in range(begin, end):
                untried = lanes.end[lane] > waited or (lanes.end[lane] == waited and lane > tried)
                if untried and _has_work(world, lane) and (best == NOBODY or lanes.end[lane] < lanes.end[best]):
                    best = lane
            if best == NOBODY:
                break
            waited = lanes.end[best]
            tried = best
            began = begin_step(world, best, now)
            if began:
                break
        if began and floor.state.queue.count[0] > 0:  # what is offered next sees the step
            for s in range(floor.tables.stages[group]):
                floor.state.tail.free[group, s] = world.clocks.free[group, s]
        if world.totals[PREEMPTIONS] > preempted:
            for other in range(floor.wake.size):
                if other != group:
                    _rewake(floor, other, now, True)
    _rewake(floor, group, now, began)


@compiled
def _has_work(world: World, lane: int) -> bool:
    lanes = world.lanes
    if lanes.in_flight[lane]:
        return False
    if lanes.decoding[lane] > 0 or lanes.prefilling[lane] != NOBODY:
        return True
    return world.lines.count[world.engines.line[world.engines.lane_engine[lane]]] > 0


@compiled
def _rewake(floor: Floor, group: int, now: float, idle: bool) -> None:
    """Set when the group next has something to do; `idle`: lanes that are not in flight may find work now."""
    world = floor.world
    engines, lanes = world.engines, world.lanes
    wake = np.inf
    begin = engines.first_lane[engines.first_of_group[group]]
    for lane in range(begin, engines.first_lane[engines.first_of_group[group + 1]]):
        at = np.inf
        if lanes.in_flight[lane]:
            at = lanes.end[lane]
        elif idle and floor.booked[group] == 0 and _has_work(world, lane):
            at = later(now, world.clocks.free[group, 0])
        wake = at if at < wake else wake
    floor.wake[group] = wake


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
        clocks = state.tail if state.queue.count[0] > 0 else state.clocks
        status = admission(world, floor.outlook, clocks, request, model, now, capacity)
        world.answers.status[request] = status
        if status != SERVED:
            return
    world.answers.status[request] = EXPIRED  # until its last token is made
    join_back(world, line, request)
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        _rewake(floor, engines.group[engines.by_model[i]], now, True)


@compiled_apart
def _offer(
    floor: Floor, model: NDArray[np.int32], request: int, now: float, sizes: int, overtake: float
) -> None:
    """A one-pass request under the `deadline` rule."""
    verdict = offer(floor.tables, floor.state, request, model[request], now, sizes, overtake)
    floor.world.answers.status[request] = verdict.status
    if verdict.dropped != NOBODY:
        floor.world.answers.status[verdict.dropped] = EXPIRED


@compiled_apart
def _bind(floor: Floor, request: int, model: int, now: float) -> None:
    """A one-pass request under the `shortest-queue` rule."""
    tables, clocks, answers = floor.tables, floor.state.clocks, floor.world.answers
    replica = shortest_queue(tables, clocks, model)
    if replica == NOBODY:
        answers.status[request] = NO_REPLICA
    elif finish_time(tables, clocks, replica, model, 0, now) <= now + tables.slack[model]:
        _run_batch(floor, clocks, replica, request, model, 0, now)


@compiled_apart
def _launch(floor: Floor, now: float) -> None:
    """Begin the one-pass batches whose start has come, noting stage by stage what `launch` will do."""
    queue, answers = floor.state.queue, floor.world.answers
    draft = floor.state.draft
    for group in range(floor.tables.stages.size):
        draft.awake[group] = floor.state.clocks.awake[group]
        for s in range(floor.tables.stages[group]):
            draft.free[group, s] = floor.state.clocks.free[group, s]
    newest = NOBODY
    for row in range(queue.count[0]):
        if queue.start[row] > now:
            continue
        request = queue.request[row]
        if queue.batch[row] > newest:
            newest = queue.batch[row]
            _run_batch(floor, draft, queue.replica[row], request, queue.model[row], queue.size[row], queue.start[row])
            continue
        head = row - 1
        while queue.batch[head] != queue.batch[row]:
            head -= 1
        _copy_answer(answers, queue.request[head], request)
    launch(floor.tables, floor.state, now)


@compiled
def _run_batch(
    floor: Floor, clocks: Clocks, replica: int, request: int, model: int, size: int, now: float
) -> None:
    """dispatch.occupy, noting for the batch's head when it was where."""
    tables, answers = floor.tables, floor.world.answers
    group = tables.replica_group[replica]
    kind, profile = tables.group_class[group], tables.profile[model]
    x = later(now, tables.replica_ready[replica])
    if tables.replica_parked[replica] and clocks.awake[group] != model:
        clocks.awake[group] = model
        begin = later(x, clocks.free[group, 0])
        for s in range(tables.stages[group]):
            clocks.free[group, s] = later(begin, clocks.free[group, s]) + tables.wake[kind, profile, s]
    for s in range(tables.stages[group]):
        begin = later(x, clocks.free[group, s])
        x = begin + tables.latency[kind, profile, size, s]
        clocks.free[group, s] = x
        answers.stage_start[request, s] = begin
        answers.stage_end[request, s] = x
        floor.world.busy[group] += x - begin
    answers.status[request] = SERVED
    answers.group[request] = group
    answers.batch[request] = floor.counts[BATCHES]
    answers.first[request] = x
    answers.finish[request] = x
    floor.counts[BATCHES] += 1


@compiled
def _copy_answer(answers: Answers, source: int, target: int) -> None:
    answers.group[target] = answers.group[source]
    answers.batch[target] = answers.batch[source]
    answers.first[target] = answers.first[source]
    answers.finish[target] = answers.finish[source]
    for s in range(answers.stage_start.shape[1]):
        answers.stage_start[target, s] = answers.stage_start[source, s]
        answers.stage_end[target, s] = answers.stage_end[source, s]


@compiled_apart
def _book(floor: Floor, now: float) -> float:
    """Count who is booked on each group; returns when the first of them begins."""
    queue = floor.state.queue
    for group in range(floor.booked.size):
        floor.booked[group] = 0
    starts = np.inf
    for row in range(queue.count[0]):
        floor.booked[floor.tables.replica_group[queue.replica[row]]] += 1
        starts = queue.start[row] if queue.start[row] < starts else starts
    for group in range(floor.booked.size):
        _rewake(floor, group, now, True)
    return starts
