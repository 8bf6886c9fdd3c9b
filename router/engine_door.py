"""Python's door to the compiled rules of generating models: who is admitted, and who is handed to which engine.

The rules are placement's (first_token.py, intake.py). A request's own goals stand in for its model's during a call.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placement.clocks import NOBODY, Bools, Floats, Ints, later
from placement.compiled import compiled, compiled_apart, entry_point
from placement.generation.first_token import admission
from placement.generation.intake import expire, join_front, learn_wait, mean_output, next_in_line, pull, unlink
from placement.generation.step_cost import prefill_s, step_s
from router.floor_memory import unpack_floor
from router.world_memory import OUT, Mirror, unpack_world

Status = NDArray[np.int8]


@entry_point
def admit(
    f: Floats,
    i: Ints,
    b: Bools,
    fw: Floats,
    iw: Ints,
    bw: Bools,
    status: Status,
    request: int,
    model: int,
    now: float,
    goals: tuple[float, float, float],
    capacity: int,
) -> tuple[int, float]:
    """Whether the request, whose slot has its prompt, can have its first token in time behind all who are due no
    later; it is not in line yet. `goals`: seconds to the first token, to the last, and for each one more.
    Returns the status and when the first token is expected; who expired stands in `Mirror.out`."""
    floor = unpack_floor(f, i, b)
    mirror = unpack_world(fw, iw, bw, status, floor.state.clocks)
    world = mirror.world
    engines, lines = world.engines, world.lines
    iw[OUT] = 0
    _expire_late(mirror, iw, model, now)
    _look_at(mirror, model, now)
    slack, finish_slack, tpot = engines.slack[model], engines.finish_slack[model], engines.tpot[model]
    waiting, tokens = lines.waiting[model], lines.tokens[model]
    head = lines.head[model]
    # What waits behind the newcomer does not delay it.
    other = lines.tail[model]
    while other != NOBODY and world.sequences.deadline[other] > now + goals[0]:
        lines.waiting[model] -= 1
        lines.tokens[model] -= world.sequences.prompt[other]
        other = world.sequences.ahead[other]
    engines.slack[model], engines.finish_slack[model] = goals[0], goals[1]
    engines.tpot[model] = goals[2] if goals[2] < tpot else tpot
    lines.head[model] = NOBODY
    clocks = floor.state.tail if floor.state.queue.length[0] > 0 else floor.state.clocks
    verdict = admission(world, mirror.outlook, clocks, request, model, now, capacity)
    lines.head[model], lines.waiting[model], lines.tokens[model] = head, waiting, tokens
    engines.slack[model], engines.finish_slack[model], engines.tpot[model] = slack, finish_slack, tpot
    mirror.slack[request] = goals[0]
    return verdict, world.sequences.expected[request]


@entry_point
def can_when_idle(
    f: Floats,
    i: Ints,
    b: Bools,
    fw: Floats,
    iw: Ints,
    bw: Bools,
    status: Status,
    model: int,
    prompt: int,
    goals: tuple[float, float, float],
) -> bool:
    """Whether some engine of the model, with nothing else to do, would keep these goals."""
    world = unpack_world(fw, iw, bw, status, unpack_floor(f, i, b).state.clocks).world
    engines = world.engines
    rest = mean_output(world.learned, model) - 1.0
    for k in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[k]
        if prompt <= engines.capacity[engine]:
            first = prefill_s(engines, engine, prompt, world.step_tokens, 0, 0)
            pace = 0.0
            for s in range(engines.stages[engine]):
                pace += step_s(engines, engine, s, 0.0, 1.0, 0.0, float(prompt))
            if first <= goals[0] and pace <= goals[2] and first + rest * pace <= goals[1]:
                return True
    return False


@entry_point
def join(
    f: Floats, i: Ints, b: Bools, fw: Floats, iw: Ints, bw: Bools, status: Status, request: int, line: int
) -> None:
    """Into the line: behind all who are due no later."""
    mirror = unpack_world(fw, iw, bw, status, unpack_floor(f, i, b).state.clocks)
    sequences, lines = mirror.world.sequences, mirror.world.lines
    if sequences.latest[request] < mirror.soonest[line]:
        mirror.soonest[line] = sequences.latest[request]
    ahead = lines.tail[line]
    while ahead != NOBODY and sequences.deadline[ahead] > sequences.deadline[request]:
        ahead = sequences.ahead[ahead]
    if ahead == NOBODY:
        join_front(mirror.world, line, request)
        return
    behind = sequences.behind[ahead]
    sequences.ahead[request], sequences.behind[request] = ahead, behind
    sequences.behind[ahead] = request
    if behind == NOBODY:
        lines.tail[line] = request
    else:
        sequences.ahead[behind] = request
    lines.waiting[line] += 1
    lines.tokens[line] += sequences.prompt[request]


@entry_point
def leave(
    f: Floats, i: Ints, b: Bools, fw: Floats, iw: Ints, bw: Bools, status: Status, request: int, line: int
) -> None:
    """Out of the line."""
    unlink(unpack_world(fw, iw, bw, status, unpack_floor(f, i, b).state.clocks).world, line, request)


@entry_point
def hand(
    f: Floats, i: Ints, b: Bools, fw: Floats, iw: Ints, bw: Bools, status: Status, model: int, now: float, known: int
) -> tuple[int, int, float]:
    """The next waiting request that a lane may pull (or NOBODY), that lane, and when its first token is expected: of
    those that may, the lane that makes it first; ties: the engine with fewest cached tokens, then the first.
    `known`: the request that `Mirror.prefix` speaks of. Who expired stands in `Mirror.out`."""
    floor = unpack_floor(f, i, b)
    mirror = unpack_world(fw, iw, bw, status, floor.state.clocks)
    world = mirror.world
    engines, lanes, sequences = world.engines, world.lanes, world.sequences
    iw[OUT] = 0
    _expire_late(mirror, iw, model, now)
    _look_at(mirror, model, now)
    best, taker = NOBODY, NOBODY
    earliest = np.inf
    for k in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[k]
        for lane in range(engines.first_lane[engine], engines.first_lane[engine + 1]):
            if mirror.pending[lane] >= world.step_tokens:
                continue
            size = lanes.decoding[lane] + mirror.handed[lane]
            cached = lanes.cached[lane] + mirror.pending[lane]
            request = next_in_line(world, lane, now, size, cached)
            if request == NOBODY or (best != NOBODY and request != best and not _before(mirror, request, best)):
                continue
            if request != best:
                earliest = np.inf
            rest = sequences.prompt[request] - (mirror.prefix[engine] if request == known else 0)
            rest = rest if rest > 1 else 1
            at = now + prefill_s(engines, engine, rest + mirror.pending[lane], world.step_tokens, size, cached)
            if lanes.in_flight[lane]:
                at += later(lanes.end[lane] - now, 0.0)
            fewer = at == earliest and world.used[engine] < world.used[engines.lane_engine[taker]]
            if at < earliest or fewer:
                best, taker, earliest = request, lane, at
    if best != NOBODY:
        engine = engines.lane_engine[taker]
        pull(world, engine, best, sequences.prompt[best])
        _take_prompt(mirror, taker, best, now)
    return best, taker, earliest


@entry_point
def place(
    f: Floats, i: Ints, b: Bools, fw: Floats, iw: Ints, bw: Bools, status: Status, request: int, engine: int, now: float
) -> int:
    """Count a request that runs already in the engine's emptiest lane, as one whose prompt is pending; returns it."""
    mirror = unpack_world(fw, iw, bw, status, unpack_floor(f, i, b).state.clocks)
    world = mirror.world
    best: int = world.engines.first_lane[engine]
    for lane in range(best, world.engines.first_lane[engine + 1]):
        if _size(mirror, lane) < _size(mirror, best):
            best = lane
    world.used[engine] += world.sequences.prompt[request]
    world.running[engine] += 1
    _take_prompt(mirror, best, request, now)
    return best


@entry_point
def first_token(
    f: Floats,
    i: Ints,
    b: Bools,
    fw: Floats,
    iw: Ints,
    bw: Bools,
    status: Status,
    request: int,
    lane: int,
    sequences: int,
    now: float,
    learns: bool,
) -> None:
    """The first token has come: the request's sequences decode, and its wait is learned from."""
    mirror = unpack_world(fw, iw, bw, status, unpack_floor(f, i, b).state.clocks)
    world = mirror.world
    model = world.engines.model[world.engines.lane_engine[lane]]
    if learns:
        _learn(mirror, model, request, now)
    _drop_prompt(mirror, lane, request, now)
    world.lanes.decoding[lane] += sequences
    world.lanes.cached[lane] += world.sequences.prompt[request]
    mirror.event[lane] = now


@entry_point
def end(
    f: Floats,
    i: Ints,
    b: Bools,
    fw: Floats,
    iw: Ints,
    bw: Bools,
    status: Status,
    request: int,
    lane: int,
    sequences: int,
    tokens: int,
    now: float,
) -> None:
    """A request is gone from its lane, with so many tokens cached beside its prompt (-1: before its first)."""
    mirror = unpack_world(fw, iw, bw, status, unpack_floor(f, i, b).state.clocks)
    world = mirror.world
    engine = world.engines.lane_engine[lane]
    held = world.sequences.prompt[request]
    if tokens < 0:
        _drop_prompt(mirror, lane, request, now)
    else:
        world.lanes.decoding[lane] -= sequences
        world.lanes.cached[lane] -= held + tokens
        held += tokens
    world.used[engine] -= held
    world.running[engine] -= 1


@entry_point
def look(f: Floats, i: Ints, b: Bools, fw: Floats, iw: Ints, bw: Bools, status: Status, now: float) -> None:
    """Let the clocks of groups with engines show the steps in progress, for one-pass requests."""
    floor = unpack_floor(f, i, b)
    mirror = unpack_world(fw, iw, bw, status, floor.state.clocks)
    lanes, engines = mirror.world.lanes, mirror.world.engines
    for group in range(engines.first_of_group.size - 1):
        _look(mirror, group, now)
    clocks, tail = floor.state.clocks, floor.state.tail
    for lane in range(lanes.end.size):
        if lanes.in_flight[lane]:
            engine = engines.lane_engine[lane]
            group = engines.group[engine]
            for s in range(engines.stages[engine]):
                clocks.free[group, s] = later(clocks.free[group, s], lanes.end[lane])
                tail.free[group, s] = later(tail.free[group, s], lanes.end[lane])
            clocks.drained[group] = clocks.free[group, engines.stages[engine] - 1]
            tail.drained[group] = tail.free[group, engines.stages[engine] - 1]


@compiled
def _before(mirror: Mirror, request: int, other: int) -> bool:
    """Whether it stands before the other in their line."""
    ahead = mirror.world.sequences.ahead[other]
    while ahead != NOBODY and ahead != request:
        ahead = mirror.world.sequences.ahead[ahead]
    return bool(ahead == request)


@compiled
def _size(mirror: Mirror, lane: int) -> int:
    size: int = mirror.world.lanes.decoding[lane] + mirror.handed[lane]
    return size


@compiled
def _take_prompt(mirror: Mirror, lane: int, request: int, now: float) -> None:
    if mirror.handed[lane] == 0:
        mirror.since[lane] = now
        if mirror.world.lanes.decoding[lane] == 0:
            mirror.event[lane] = now
    mirror.handed[lane] += 1
    mirror.pending[lane] += mirror.world.sequences.prompt[request]


@compiled
def _drop_prompt(mirror: Mirror, lane: int, request: int, now: float) -> None:
    mirror.handed[lane] -= 1
    mirror.pending[lane] -= mirror.world.sequences.prompt[request]
    mirror.since[lane] = now


@compiled
def _learn(mirror: Mirror, model: int, request: int, first: float) -> None:
    engines = mirror.world.engines
    slack = engines.slack[model]
    engines.slack[model] = mirror.slack[request]
    learn_wait(mirror.world, model, request, first)
    engines.slack[model] = slack


@compiled_apart
def _expire_late(mirror: Mirror, iw: Ints, model: int, now: float) -> None:
    """Drop those whom no engine can give a first token in time any more."""
    if now <= mirror.soonest[model]:
        return
    world = mirror.world
    request = world.lines.head[model]
    slack = world.engines.slack[model]
    soonest = np.inf
    while request != NOBODY:
        behind = world.sequences.behind[request]
        if now > world.sequences.latest[request]:
            world.engines.slack[model] = mirror.slack[request]
            expire(world, model, request)
            mirror.out[iw[OUT]] = request
            iw[OUT] += 1
        elif world.sequences.latest[request] < soonest:
            soonest = world.sequences.latest[request]
        request = behind
    world.engines.slack[model] = slack
    mirror.soonest[model] = soonest


@compiled
def _look_at(mirror: Mirror, model: int, now: float) -> None:
    """At all groups that serve the model."""
    engines = mirror.world.engines
    for k in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        _look(mirror, engines.group[engines.by_model[k]], now)


@compiled_apart
def _look(mirror: Mirror, group: int, now: float) -> None:
    """Reckon what cannot be seen: how far the group's lanes are with their prompts, and when their steps end."""
    world = mirror.world
    engines, lanes = world.engines, world.lanes
    first_row = world.sequences.prompt.size - lanes.end.size
    first = engines.first_lane[engines.first_of_group[group]]
    for lane in range(first, engines.first_lane[engines.first_of_group[group + 1]]):
        engine = engines.lane_engine[lane]
        pending = mirror.pending[lane]
        lanes.in_flight[lane] = lanes.decoding[lane] > 0 or pending > 0
        if not lanes.in_flight[lane]:
            lanes.prefilling[lane] = NOBODY
            lanes.slowest[lane] = 0.0
            lanes.end[lane] = now
            continue
        chunk = pending if pending < world.step_tokens else world.step_tokens
        seconds, slowest = 0.0, 0.0
        for s in range(engines.stages[engine]):
            stage = step_s(engines, engine, s, chunk, lanes.decoding[lane], 0.0, lanes.cached[lane])
            seconds += stage
            slowest = later(slowest, stage)
        lanes.slowest[lane] = slowest
        lanes.end[lane] = later(mirror.event[lane] + seconds, now)
        lanes.prefilling[lane] = NOBODY
        if pending > 0:
            row = first_row + lane
            lanes.prefilling[lane] = row
            done = int((now - mirror.since[lane]) / seconds * chunk)
            world.sequences.held[row] = pending
            world.sequences.done[row] = done if done < pending else pending
