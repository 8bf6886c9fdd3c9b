"""When a newcomer's first token could come: what a generating model's requests are admitted by. Compiled.

An estimate from what is known at arrival: stage clocks, who waits and runs, prompts, and the lengths of
answers that have ended. docs/generation.md states it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.clocks import NOBODY, Clocks, Floats, Ints, later
from placement.compiled import compiled, compiled_apart
from placement.dispatch import QUEUE_FULL, REFUSED, SERVED
from placement.generation.engine_tables import World
from placement.generation.intake import UNUSED, expire, is_asleep, mean_output, others_s, taken
from placement.generation.step_cost import (
    CACHED_TOKEN,
    EXPERTS,
    FIXED,
    PREFILL_TOKEN,
    SEQUENCE,
    WEIGHTS,
    prefill_s,
    step_s,
)

HALVINGS = 20
"""Of the cache, to find how much can be used where steps read more experts with more sequences."""


class Outlook(NamedTuple):
    """Room for an estimate, [L]: when a lane can begin a new prompt, in chunks of how many tokens, and how
    many a second."""

    open_at: Floats
    chunk: Ints
    rate: Floats
    beside: Floats  # seconds that other engines of the group put between two steps


def new_outlook(lanes: int) -> Outlook:
    return Outlook(np.zeros(lanes), np.zeros(lanes, np.int64), np.zeros(lanes), np.zeros(lanes))


@compiled_apart
def admission(
    world: World, outlook: Outlook, clocks: Clocks, request: int, model: int, now: float, capacity: int
) -> int:
    """SERVED, QUEUE_FULL or REFUSED: whether the request can have its first token in time. `clocks`: when the
    groups' stages are free of what was scheduled before; `capacity`: how many may wait. Sets the request's
    deadlines."""
    engines, sequences, lines, learned = world.engines, world.sequences, world.lines, world.learned
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
    learned.arrived[model] += 1
    learned.arrived_tokens[model] += prompt
    head = lines.head[model]
    while head != NOBODY and sequences.made[head] == 0 and now > sequences.latest[head]:
        expire(world, model, head)
        head = lines.head[model]
    if lines.waiting[model] >= capacity:
        return QUEUE_FULL
    if lone == np.inf:
        return REFUSED
    _look_out(world, outlook, clocks, model, now)
    turn = later(_line_gone(world, outlook, model), now + _room_s(world, model, prompt))
    wait = _expected_wait(world, outlook, model, prompt, turn, now)
    if wait > lone:  # what an idle engine takes is known; what others add to it is reckoned
        wait = lone + (wait - lone) * learned.stretch[model]
    sequences.expected[request] = now + wait
    return SERVED if now + wait <= deadline else REFUSED


@compiled
def _look_out(world: World, outlook: Outlook, clocks: Clocks, model: int, now: float) -> None:
    """Fill in the outlook of the lanes that serve the model."""
    engines, lanes, lines = world.engines, world.lanes, world.lines
    context = lines.tokens[model] / (2.0 * lines.waiting[model]) if lines.waiting[model] > 0 else 0.0
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
            if is_asleep(world, engine):
                open_at += engines.wake[engine]
            current = lanes.prefilling[lane]
            if current != NOBODY and chunk > 0:
                left = world.sequences.held[current] - world.sequences.done[current]
                open_at += left * seconds / chunk
            outlook.open_at[lane] = open_at
            outlook.chunk[lane] = chunk
            outlook.beside[lane] = others
            outlook.rate[lane] = chunk / seconds if chunk > 0 else 0.0


@compiled
def _usual_chunk(world: World, lane: int, engine: int, others: float) -> int:
    """Prefill tokens that a step of the lane can carry beside its decoding sequences without breaking their
    goal."""
    engines, lanes = world.engines, world.lanes
    sequences = lanes.decoding[lane] + lanes.fresh[lane]
    room: int = world.step_tokens - sequences
    if sequences == 0 or room <= 0:
        return room
    least = others
    compute = 0.0
    token = 0.0
    experts = 0.0
    for s in range(engines.stages[engine]):
        cost = engines.cost
        least += step_s(engines, engine, s, 0.0, sequences, 0.0, lanes.cached[lane])
        compute += cost[engine, s, FIXED] + cost[engine, s, SEQUENCE] * sequences
        compute += cost[engine, s, CACHED_TOKEN] * lanes.cached[lane]
        token += cost[engine, s, PREFILL_TOKEN]
        experts += cost[engine, s, EXPERTS]
    goal = engines.tpot[engines.model[engine]]
    if least > goal:
        return 0
    spare = goal - others - compute
    chunk: int = room if spare >= room * token else int(spare / token)
    if experts == 0.0:
        return chunk
    low = 0  # what the experts take bends: bisect
    high = chunk + 1
    middle = chunk
    while high - low > 1:
        seconds = others
        for s in range(engines.stages[engine]):
            seconds += step_s(engines, engine, s, middle, sequences, 0.0, lanes.cached[lane])
        if seconds <= goal:
            low = middle
        else:
            high = middle
        middle = (low + high) // 2
    return low


@compiled
def _line_gone(world: World, outlook: Outlook, model: int) -> float:
    """When the lanes, each from its time on at its rate, have begun all prompts that wait now."""
    engines = world.engines
    tokens = float(world.lines.tokens[model])
    level = np.inf
    while True:  # lanes that open after the level do not help; leaving them out lowers it, until all help
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
    """Seconds until the caches can have taken in all who wait and the newcomer, at the pace at which full
    engines end their sequences."""
    engines, learned = world.engines, world.learned
    output = mean_output(learned, model)
    usual_prompt = learned.arrived_tokens[model] / learned.arrived[model]
    usual = usual_prompt + 0.5 * output + UNUSED
    lacking = world.lines.tokens[model] + prompt + (world.lines.waiting[model] + 1) * (output + UNUSED)
    freed = 0.0
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[i]
        room = _useful_capacity(world, engine, usual)
        if room <= 0.0:
            continue
        lacking -= later(room - taken(world, engine), 0.0)
        lane_room = room / engines.stages[engine]
        sequences = lane_room / usual
        prefill = sequences * usual_prompt / output
        seconds = 0.0
        for s in range(engines.stages[engine]):
            seconds += step_s(engines, engine, s, prefill, sequences, prefill * 0.5 * usual_prompt, lane_room)
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
    most: float = later(least, 0.0) * engines.stages[engine]
    most = most if most < engines.capacity[engine] else float(engines.capacity[engine])
    for s in range(engines.stages[engine]):
        if cost[engine, s, EXPERTS] > 0.0:
            most = _in_time(world, engine, s, share, sequence_tokens, most)
    return most


@compiled_apart
def _in_time(world: World, engine: int, stage: int, limit: float, sequence_tokens: float, most: float) -> float:
    """Of `most` tokens of cache as many as a step of their sequences can use within `limit` seconds on the stage."""
    engines = world.engines
    low = 0.0
    high = most
    middle = most
    for _ in range(HALVINGS):
        lane_room = middle / engines.stages[engine]
        if step_s(engines, engine, stage, 0.0, lane_room / sequence_tokens, 0.0, lane_room) <= limit:
            low = middle
        else:
            high = middle
        if low == high:
            break
        middle = 0.5 * (low + high)
    return low


@compiled
def _expected_wait(world: World, outlook: Outlook, model: int, prompt: int, turn: float, now: float) -> float:
    """Seconds from now to the first token on the lane that, when the newcomer's turn has come, makes it
    first; inf where an answer would break a goal that follows: the pace of tokens, or the end of one of usual
    length."""
    engines, lanes = world.engines, world.lanes
    rest = mean_output(world.learned, model) - 1.0
    best = np.inf
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[i]
        if prompt > engines.capacity[engine]:
            continue
        for lane in range(engines.first_lane[engine], engines.first_lane[engine + 1]):
            chunk = outlook.chunk[lane]
            if chunk <= 0:
                continue
            sequences, cached = lanes.decoding[lane] + lanes.fresh[lane], lanes.cached[lane]
            pace = 0.0
            for s in range(engines.stages[engine]):
                pace += step_s(engines, engine, s, 0.0, sequences + 1.0, 0.0, cached + float(prompt))
            if sequences == 0 and pace > engines.tpot[model]:
                continue
            wait = later(turn, outlook.open_at[lane]) - now
            wait += prefill_s(engines, engine, prompt, chunk, sequences, cached)
            wait += (prompt + chunk - 1) // chunk * outlook.beside[lane]
            if wait < best and wait + rest * pace <= engines.finish_slack[model]:
                best = wait
    return best


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
