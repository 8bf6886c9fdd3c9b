"""An engine: one replica of a generating model, run step by step in lanes. Compiled; docs/generation.md has
the rules.

Knows stage clocks, the cache and whom it may pull; nothing of arrivals, of admission or of rules.
"""

from __future__ import annotations

import numpy as np

from placement.clocks import NOBODY, later
from placement.compiled import compiled, compiled_apart
from placement.dispatch import FAILED, SERVED
from placement.generation.engine_tables import PREEMPTIONS, STEPS, World
from placement.generation.intake import another_is_sooner, is_asleep, join_front, learn_wait, next_in_line, pull
from placement.generation.step_cost import step_s

NEVER = np.iinfo(np.int64).max


@compiled
def begin_step(world: World, lane: int, now: float) -> bool:
    """Run the lane's next step: all who decode, and prefill chunks as far as tokens, cache and goals allow.
    False when there is nothing to do."""
    lanes, sequences = world.lanes, world.sequences
    engine = world.engines.lane_engine[lane]
    if world.used[engine] + lanes.decoding[lane] > world.engines.capacity[engine]:
        make_room(world, lane)
    decoding = lanes.decoding[lane]
    limit = np.inf
    if decoding > 0:
        tpot = world.engines.tpot[world.engines.model[engine]]
        limit = later(lanes.due[lane] + lanes.steps[lane] * tpot, lanes.end[lane] + tpot)
    world.used[engine] += decoding
    prefill = 0
    context = 0
    fresh = 0
    will_cache = lanes.cached[lane] + decoding
    request = lanes.prefilling[lane]
    while decoding + prefill < world.step_tokens:
        comes = request == NOBODY
        if comes:
            request = next_in_line(world, lane, now, decoding + fresh, will_cache)
            if request == NOBODY:
                break
            if decoding > 0 and another_is_sooner(world, lane, request, now, decoding + fresh, will_cache):
                break
        done = 0 if comes else sequences.done[request]
        total = sequences.prompt[request] + sequences.made[request] if comes else sequences.held[request]
        room = world.step_tokens - decoding - prefill
        most = total - done if total - done < room else room
        take = chunk_in_time(world, lane, now, limit, prefill, context, done, most)
        if take == 0:
            break
        if comes:
            if is_asleep(world, engine):
                wake_up(world, engine, now)
            pull(world, engine, request, total)
        prefill += take
        context += take * done
        sequences.done[request] = done + take
        if done + take < total:
            lanes.prefilling[lane] = request
            break
        lanes.prefilling[lane] = NOBODY
        lanes.member[lane, decoding + fresh] = request
        fresh += 1
        lanes.fresh[lane] = fresh
        will_cache += total
        request = NOBODY
    if decoding + prefill == 0:
        return False
    run_step(world, lane, now, prefill, context)
    return True


@compiled_apart
def wake_up(world: World, engine: int, now: float) -> None:
    """Let the engine be the one of its group that is awake; no stage computes meanwhile."""
    group = world.engines.group[engine]
    world.clocks.awake[group] = world.engines.model[engine]
    for s in range(world.engines.stages[engine]):
        world.clocks.free[group, s] = later(now, world.clocks.free[group, s]) + world.engines.wake[engine]


@compiled
def chunk_in_time(
    world: World, lane: int, now: float, limit: float, prefill: int, context: int, done: int, most: int
) -> int:
    """How many more tokens, up to `most`, of a prompt with `done` cached ones let the step end by `limit`."""
    if limit == np.inf or _step_end(world, lane, now, prefill + most, context + most * done) <= limit:
        return most
    low = 0
    high = most
    while high - low > 1:
        middle = (low + high) // 2
        if _step_end(world, lane, now, prefill + middle, context + middle * done) <= limit:
            low = middle
        else:
            high = middle
    return low


@compiled
def _step_end(world: World, lane: int, now: float, prefill: int, context: int) -> float:
    engine = world.engines.lane_engine[lane]
    group = world.engines.group[engine]
    x = now
    for s in range(world.engines.stages[engine]):
        seconds = step_s(
            world.engines, engine, s, prefill, world.lanes.decoding[lane], context, world.lanes.cached[lane]
        )
        x = later(x, world.clocks.free[group, s]) + seconds
    return x


@compiled
def run_step(world: World, lane: int, now: float, prefill: int, context: int) -> None:
    """Send the step through the stages, each when it is free."""
    lanes = world.lanes
    engine = world.engines.lane_engine[lane]
    group = world.engines.group[engine]
    decoding = lanes.decoding[lane]
    slowest = 0.0
    x = now
    for s in range(world.engines.stages[engine]):
        seconds = step_s(world.engines, engine, s, prefill, decoding, context, lanes.cached[lane])
        begin = later(x, world.clocks.free[group, s])
        x = begin + seconds
        world.clocks.free[group, s] = x
        lanes.stage_begin[lane, s] = begin
        lanes.stage_end[lane, s] = x
        slowest = later(slowest, seconds)
        world.busy[group] += seconds
    world.clocks.drained[group] = x
    lanes.end[lane] = x
    lanes.slowest[lane] = slowest
    lanes.in_flight[lane] = True
    world.totals[STEPS] += 1
    for row in range(decoding, decoding + lanes.fresh[lane]):
        _note_begin(world, lane, lanes.member[lane, row])
    if lanes.prefilling[lane] != NOBODY:
        _note_begin(world, lane, lanes.prefilling[lane])


@compiled
def _note_begin(world: World, lane: int, request: int) -> None:
    start = world.answers.stage_start
    if np.isnan(start[request, 0]):
        for s in range(world.engines.stages[world.engines.lane_engine[lane]]):
            start[request, s] = world.lanes.stage_begin[lane, s]


@compiled
def end_step(world: World, lane: int) -> None:
    """The lane's step has left the last stage: everybody in it has one token more."""
    lanes = world.lanes
    lanes.in_flight[lane] = False
    lanes.steps[lane] += 1
    lanes.cached[lane] += lanes.decoding[lane]
    if lanes.fresh[lane] > 0 or lanes.steps[lane] == lanes.next_end[lane]:
        _settle(world, lane)


@compiled
def _settle(world: World, lane: int) -> None:
    """Let those whose prefill is done decode, and those with their last token go."""
    lanes, sequences, answers = world.lanes, world.sequences, world.answers
    steps = lanes.steps[lane]
    decoding = lanes.decoding[lane]
    kept = 0
    for row in range(decoding + lanes.fresh[lane]):
        request = lanes.member[lane, row]
        if row >= decoding:
            if sequences.made[request] == 0:
                answers.first[request] = lanes.end[lane]
                learn_wait(world, world.engines.model[world.engines.lane_engine[lane]], request, lanes.end[lane])
            sequences.made[request] += 1
            sequences.joined[request] = steps
            sequences.ends[request] = steps + sequences.output[request] - sequences.made[request]
            lanes.cached[lane] += sequences.held[request]
        if sequences.ends[request] > steps:
            lanes.member[lane, kept] = request
            kept += 1
        else:
            _finish(world, lane, request)
    lanes.decoding[lane] = kept
    lanes.fresh[lane] = 0
    _look_ahead(world, lane)


@compiled
def _finish(world: World, lane: int, request: int) -> None:
    lanes, answers = world.lanes, world.answers
    model = world.engines.model[world.engines.lane_engine[lane]]
    _release(world, lane, request)
    world.learned.ended[model] += 1
    world.learned.ended_tokens[model] += world.sequences.output[request]
    answers.status[request] = SERVED
    answers.finish[request] = lanes.end[lane]
    for s in range(world.engines.stages[world.engines.lane_engine[lane]]):
        answers.stage_end[request, s] = lanes.stage_end[lane, s]


@compiled
def _release(world: World, lane: int, request: int) -> None:
    """Drop the cache of a sequence that decodes."""
    engine = world.engines.lane_engine[lane]
    tokens = world.sequences.held[request] + world.lanes.steps[lane] - world.sequences.joined[request]
    world.lanes.cached[lane] -= tokens
    world.used[engine] -= tokens
    world.running[engine] -= 1


@compiled
def _look_ahead(world: World, lane: int) -> None:
    """When the next sequence ends, and how long the next token of all is in time."""
    lanes, sequences = world.lanes, world.sequences
    tpot = world.engines.tpot[world.engines.model[world.engines.lane_engine[lane]]]
    next_end = NEVER
    due = np.inf
    for row in range(lanes.decoding[lane]):
        request = lanes.member[lane, row]
        if sequences.ends[request] < next_end:
            next_end = sequences.ends[request]
        own = world.answers.first[request] + (sequences.made[request] - sequences.joined[request]) * tpot
        if own < due:
            due = own
    lanes.next_end[lane] = next_end
    lanes.due[lane] = due


@compiled_apart
def make_room(world: World, lane: int) -> None:
    """Send the lane's youngest sequences back to the front of the line until those who decode can have one
    token more. One that is alone on its engine, or would fit no engine again, has failed."""
    lanes, sequences = world.lanes, world.sequences
    engine = world.engines.lane_engine[lane]
    line = world.engines.line[engine]
    while lanes.decoding[lane] > 0 and world.used[engine] + lanes.decoding[lane] > world.engines.capacity[engine]:
        alone = world.running[engine] == 1
        request = lanes.prefilling[lane]
        if request != NOBODY:
            lanes.prefilling[lane] = NOBODY
            world.used[engine] -= sequences.held[request]
            world.running[engine] -= 1
        else:
            request = _remove_youngest(world, lane)
        if alone or sequences.prompt[request] + sequences.made[request] > world.engines.line_capacity[line]:
            world.answers.status[request] = FAILED
        else:
            world.totals[PREEMPTIONS] += 1
            join_front(world, line, request)


@compiled
def _remove_youngest(world: World, lane: int) -> int:
    """Take the sequence pulled last out of the lane."""
    lanes, sequences = world.lanes, world.sequences
    youngest = 0
    for row in range(1, lanes.decoding[lane]):
        if sequences.pulled[lanes.member[lane, row]] > sequences.pulled[lanes.member[lane, youngest]]:
            youngest = row
    request: int = lanes.member[lane, youngest]
    for row in range(youngest, lanes.decoding[lane] - 1):
        lanes.member[lane, row] = lanes.member[lane, row + 1]
    lanes.decoding[lane] -= 1
    _release(world, lane, request)
    sequences.made[request] += lanes.steps[lane] - sequences.joined[request]
    _look_ahead(world, lane)
    return request
