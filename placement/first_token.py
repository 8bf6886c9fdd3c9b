"""When a newcomer's first token could come: what a generating model's requests are admitted by. Compiled.

An estimate from what is known at arrival: stage clocks, who waits and runs, prompts, and the lengths of answers that
have ended. docs/generation.md states it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.compiled import compiled, compiled_apart
from placement.dispatch import NOBODY, QUEUE_FULL, REFUSED, SERVED, Clocks, Floats, Ints, later
from placement.engine import (
    CACHED_TOKEN,
    FIXED,
    PREFILL_TOKEN,
    SEQUENCE,
    WEIGHTS,
    World,
    expire,
    mean_output,
    others_s,
    prefill_s,
    step_s,
)


class Outlook(NamedTuple):
    """Room for an estimate, [L]: when a lane can begin a new prompt, in chunks of how many tokens, how many a second."""

    open_at: Floats
    chunk: Ints
    rate: Floats


def new_outlook(lanes: int) -> Outlook:
    return Outlook(np.zeros(lanes), np.zeros(lanes, np.int64), np.zeros(lanes))


@compiled_apart
def admission(
    world: World, outlook: Outlook, clocks: Clocks, request: int, model: int, now: float, capacity: int
) -> int:
    """SERVED, QUEUE_FULL or REFUSED: whether the request can have its first token in time. `clocks`: when the groups'
    stages are free of what was scheduled before; `capacity`: how many may wait. Sets the request's deadlines."""
    engines, sequences, lines = world.engines, world.sequences, world.lines
    prompt = sequences.prompt[request]
    deadline = now + engines.slack[model]
    lone = np.inf
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[i]
        if prompt <= engines.capacity[engine]:
            seconds = prefill_s(engines, engine, prompt, world.step_tokens, 0, 0)
            lone = seconds if seconds < lone else lone
    sequences.deadline[request] = deadline
    sequences.latest[request] = deadline - lone
    world.learned[model, 2] += 1
    world.learned[model, 3] += prompt
    head = lines.head[model]
    while head != NOBODY and sequences.made[head] == 0 and now > sequences.latest[head]:
        expire(world, model, head)
        head = lines.head[model]
    if lines.count[model] >= capacity:
        return QUEUE_FULL
    if lone == np.inf:
        return REFUSED
    _look_out(world, outlook, clocks, model, now)
    turn = later(_line_gone(world, outlook, model), now + _room_s(world, model, prompt))
    return SERVED if _in_time(world, outlook, model, prompt, turn, now, lone, request) else REFUSED


@compiled
def _look_out(world: World, outlook: Outlook, clocks: Clocks, model: int, now: float) -> None:
    """Fill in the outlook of the lanes that serve the model."""
    engines, lanes, lines = world.engines, world.lanes, world.lines
    context = lines.tokens[model] / (2.0 * lines.count[model]) if lines.count[model] > 0 else 0.0
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[i]
        group = engines.group[engine]
        others = 0.0
        for other in range(engines.first_of_group[group], engines.first_of_group[group + 1]):
            if other != engine:
                others += others_s(world, other)
        for lane in range(engines.first_lane[engine], engines.first_lane[engine + 1]):
            chunk = _usual_chunk(world, lane, engine, others)
            sequences = lanes.decoding[lane] + lanes.fresh[lane]
            seconds = others
            for s in range(engines.stages[engine]):
                seconds += step_s(engines, engine, s, chunk, sequences, context * chunk, lanes.cached[lane])
            open_at = later(later(now, clocks.free[group, 0]), lanes.end[lane] if lanes.in_flight[lane] else now)
            current = lanes.prefilling[lane]
            if current != NOBODY and chunk > 0:
                left = world.sequences.held[current] - world.sequences.done[current]
                open_at += left * seconds / chunk
            outlook.open_at[lane] = open_at
            outlook.chunk[lane] = chunk
            outlook.rate[lane] = chunk / seconds


@compiled
def _usual_chunk(world: World, lane: int, engine: int, others: float) -> int:
    """Prefill tokens that a step of the lane can carry beside its decoding sequences without breaking their goal."""
    engines, lanes = world.engines, world.lanes
    sequences = lanes.decoding[lane] + lanes.fresh[lane]
    room = world.step_tokens - sequences
    if sequences == 0 or room <= 0:
        return room
    least = others
    compute = 0.0
    token = 0.0
    for s in range(engines.stages[engine]):
        cost = engines.cost
        least += step_s(engines, engine, s, 0.0, sequences, 0.0, lanes.cached[lane])
        compute += cost[engine, s, FIXED] + cost[engine, s, SEQUENCE] * sequences
        compute += cost[engine, s, CACHED_TOKEN] * lanes.cached[lane]
        token += cost[engine, s, PREFILL_TOKEN]
    goal = engines.tpot[engines.model[engine]]
    if least > goal:
        return 0
    spare = goal - others - compute
    return room if spare >= room * token else int(spare / token)


@compiled
def _line_gone(world: World, outlook: Outlook, model: int) -> float:
    """When the lanes, each from its time on at its rate, have begun all prompts that wait now."""
    engines = world.engines
    tokens = float(world.lines.tokens[model])
    level = np.inf
    while True:  # lanes that open after the level do not help; leaving them out raises it, so this ends
        work = tokens
        rate = 0.0
        for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
            engine = engines.by_model[i]
            for lane in range(engines.first_lane[engine], engines.first_lane[engine + 1]):
                if outlook.open_at[lane] < level:
                    work += outlook.rate[lane] * outlook.open_at[lane]
                    rate += outlook.rate[lane]
        if rate == 0.0:
            return level
        if work / rate >= level:
            return level
        level = work / rate


@compiled
def _room_s(world: World, model: int, prompt: int) -> float:
    """Seconds until the caches can have taken in all who wait and the newcomer, at the pace at which full engines end
    their sequences."""
    engines, learned = world.engines, world.learned
    output = mean_output(learned, model)
    usual_prompt = learned[model, 3] / learned[model, 2]
    lacking = world.lines.tokens[model] + prompt + (world.lines.count[model] + 1) * output
    freed = 0.0
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[i]
        room = _useful_capacity(world, engine, usual_prompt + 0.5 * output)
        lacking -= later(room - world.used[engine], 0.0)
        sequences = room / (usual_prompt + 0.5 * output) / engines.stages[engine]
        prefill = sequences * usual_prompt / output
        seconds = 0.0
        for s in range(engines.stages[engine]):
            seconds += step_s(engines, engine, s, prefill, sequences, prefill * 0.5 * usual_prompt, room / engines.stages[engine])
        freed += room / (output * seconds)
    if lacking <= 0.0:
        return 0.0
    return lacking / freed if freed > 0.0 else np.inf


@compiled
def _useful_capacity(world: World, engine: int, sequence_tokens: float) -> float:
    """Tokens of cache that the engine can use before its steps get slower than its model's goal."""
    engines = world.engines
    cost = engines.cost
    share = engines.tpot[engines.model[engine]] / engines.stages[engine]
    least = np.inf
    for s in range(engines.stages[engine]):
        free = share - cost[engine, s, FIXED]
        by_compute = free / (cost[engine, s, SEQUENCE] / sequence_tokens + cost[engine, s, CACHED_TOKEN] + 1e-30)
        by_weights = (free - cost[engine, s, WEIGHTS]) / (cost[engine, s, CACHED_TOKEN] + 1e-30)
        least = by_compute if by_compute < least else least
        least = by_weights if by_weights < least else least
    least = later(least, 0.0) * engines.stages[engine]
    return least if least < engines.capacity[engine] else float(engines.capacity[engine])


@compiled
def _in_time(world: World, outlook: Outlook, model: int, prompt: int, turn: float, now: float, lone: float, request: int) -> bool:
    """Whether some lane that begins the prompt when its turn has come makes the first token (and, with an end-to-end
    goal, an answer of usual length) in time."""
    engines, lanes = world.engines, world.lanes
    output = mean_output(world.learned, model)
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[i]
        if prompt > engines.capacity[engine]:
            continue
        for lane in range(engines.first_lane[engine], engines.first_lane[engine + 1]):
            chunk = outlook.chunk[lane]
            if chunk <= 0:
                continue
            sequences, cached = lanes.decoding[lane] + lanes.fresh[lane], lanes.cached[lane]
            first = later(turn, outlook.open_at[lane])
            first += prefill_s(engines, engine, prompt, chunk, sequences, cached)
            if first > now + lone:
                first = now + lone + (first - now - lone) * world.learned[model, 4]
            world.sequences.expected[request] = first
            step = 0.0
            for s in range(engines.stages[engine]):
                step += step_s(engines, engine, s, 0.0, sequences + 1, 0.0, cached + prompt)
            alone = sequences == 0 and step > engines.tpot[model]
            finish = first + (output - 1.0) * step
            if first <= now + engines.slack[model] and finish <= now + engines.finish_slack[model] and not alone:
                return True
    return False


@compiled_apart
def least_loaded(world: World, model: int, prompt: int) -> int:
    """The engine with the fewest tokens waiting and running whose cache could hold the prompt, or NOBODY."""
    engines = world.engines
    best = NOBODY
    fewest = 0
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[i]
        tokens = world.used[engine] + world.lines.tokens[engines.line[engine]]
        if prompt <= engines.capacity[engine] and (best == NOBODY or tokens < fewest):
            best = engine
            fewest = tokens
    return best
