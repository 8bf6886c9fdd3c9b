"""An engine: one replica of a generating model, run step by step in lanes. Compiled; docs/generation.md has the rules.

Knows stage clocks, the cache and the lines of waiting requests; nothing of arrivals, of admission or of rules: a rule
is in the lines, deadlines and goals it is given.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.compiled import compiled, compiled_apart
from placement.dispatch import EXPIRED, FAILED, NOBODY, SERVED, Bools, Clocks, Floats, Ints, later

FIXED, WEIGHTS, PREFILL_TOKEN, PREFILL_CONTEXT, SEQUENCE, CACHED_TOKEN = range(6)
STEPS, PULLS, PREEMPTIONS = range(3)

NEVER = np.iinfo(np.int64).max

PRIOR_OUTPUT = 256.0
PRIOR_WEIGHT = 4.0
"""What answers are taken to be long before any is known, and how many known ones that belief is worth."""

import os
LOADED = int(os.environ.get("XL","0"))
RATE = float(os.environ.get("XR","0"))
SHARE = float(os.environ.get("XS","0.05"))
MOST_SKIPPED = 64 if LOADED else 8
"""How many waiting requests an engine that suits them badly may pass over to find one it can serve."""


class Engines(NamedTuple):
    """What holds for a whole plan. E engines (by group, then by model), L lanes, S stages, G groups, M models. A line
    is where requests wait: one a model, or one an engine where they are bound at arrival."""

    cost: Floats  # [E, S, 6] seconds: profile.StepCost, in its order of fields below
    stages: Ints  # [E] and as many lanes
    capacity: Ints  # [E] tokens the cache holds
    group: Ints  # [E]
    model: Ints  # [E]
    line: Ints  # [E]
    line_capacity: Ints  # [lines] the largest capacity of its engines
    first_lane: Ints  # [E + 1]
    lane_engine: Ints  # [L]
    first_of_group: Ints  # [G + 1] engines first_of_group[g] .. first_of_group[g + 1] - 1 share group g
    first_of_model: Ints  # [M + 1] into by_model
    by_model: Ints  # [E] engines sorted by model
    generates: Bools  # [M]
    slack: Floats  # [M] seconds from arrival to when the first token must leave the last stage
    finish_slack: Floats  # [M] and the last token
    tpot: Floats  # [M] seconds, finite


class Lanes(NamedTuple):
    """The sequences of an engine that step together, [L]: `decoding` ones first in `member`, then the `fresh` ones,
    whose prefill ends with the step in flight."""

    end: Floats  # when the last step leaves or left the last stage
    in_flight: Bools
    steps: Ints  # how many are done
    decoding: Ints
    fresh: Ints
    member: Ints  # [L, step tokens]
    prefilling: Ints  # the sequence in the middle of its prefill, or NOBODY
    cached: Ints  # tokens of the decoding sequences
    next_end: Ints  # the number of steps at which the next sequence has its last token
    due: Floats  # the next token of all is in time until due + steps * tpot
    slowest: Floats  # seconds of the last step on its slowest stage
    stage_begin: Floats  # [L, S] of the last step
    stage_end: Floats  # [L, S]


class Sequences(NamedTuple):
    """One row a request. Its cached tokens are `held` until it decodes, then one more each step since `joined`."""

    prompt: Ints
    output: Ints  # what really comes; read only to tell that the last token is made
    deadline: Floats  # when the first token must have left the last stage
    latest: Floats  # when even an idle engine must have begun the prefill
    made: Ints  # tokens made when it last joined or left a lane
    done: Ints  # tokens prefilled
    held: Ints  # cache taken when pulled
    joined: Ints  # the lane's steps when it began to decode
    ends: Ints  # the lane's steps when it has its last token
    pulled: Ints  # the how-maniest pull it was: larger is younger
    expected: Floats  # when the first token was expected at arrival
    ahead: Ints  # its neighbours in line
    behind: Ints


class Lines(NamedTuple):
    """Requests that wait, in the order in which they are pulled, [lines]."""

    head: Ints
    tail: Ints
    count: Ints
    tokens: Ints  # to prefill


class Answers(NamedTuple):
    """What each request did, [n]; times without overhead; NaN and NOBODY where it did not."""

    status: NDArray[np.int8]
    group: Ints
    batch: Ints
    first: Floats
    finish: Floats
    stage_start: Floats  # [n, S]
    stage_end: Floats


class World(NamedTuple):
    """Everything an engine's step reads or changes."""

    engines: Engines
    lanes: Lanes
    sequences: Sequences
    lines: Lines
    answers: Answers
    clocks: Clocks
    used: Ints  # [E] tokens in the cache or promised to a prefill
    running: Ints  # [E] sequences pulled and not ended
    learned: Floats  # [M, 4] ended requests, their output tokens; arrived requests, their prompt tokens
    busy: Floats  # [G] stage-seconds of work
    totals: Ints  # [3] steps, pulls, preemptions
    step_tokens: int  # the most tokens of a step, decoded and prefilled


@compiled
def step_s(
    engines: Engines, engine: int, stage: int, prefill: float, sequences: float, context: float, cached: float
) -> float:
    """Seconds of a step on one stage: profile.StepCost.seconds."""
    cost = engines.cost
    compute = cost[engine, stage, PREFILL_TOKEN] * prefill + cost[engine, stage, SEQUENCE] * sequences
    base = cost[engine, stage, FIXED] + later(cost[engine, stage, WEIGHTS], compute)
    return base + cost[engine, stage, PREFILL_CONTEXT] * context + cost[engine, stage, CACHED_TOKEN] * cached


@compiled
def prefill_s(engines: Engines, engine: int, tokens: int, chunk: int, sequences: int, cached: int) -> float:
    """Seconds to prefill `tokens` in chunks, beside decoding sequences that stay as they are, on free stages."""
    chunks = (tokens + chunk - 1) // chunk
    last = tokens - (chunks - 1) * chunk
    before_last = chunk * chunk * ((chunks - 1) * (chunks - 2) // 2)
    total = 0.0
    for s in range(engines.stages[engine]):
        total += (chunks - 1) * step_s(engines, engine, s, chunk, sequences, 0.0, cached)
        total += step_s(engines, engine, s, last, sequences, last * chunk * (chunks - 1), cached)
        total += engines.cost[engine, s, PREFILL_CONTEXT] * before_last
    return total


@compiled
def mean_output(learned: Floats, model: int) -> float:
    """Tokens an answer is expected to have."""
    return (PRIOR_WEIGHT * PRIOR_OUTPUT + learned[model, 1]) / (PRIOR_WEIGHT + learned[model, 0])


@compiled
def begin_step(world: World, lane: int, now: float) -> bool:
    """Run the lane's next step: all who decode, and prefill chunks as far as tokens, cache and goals allow. False when
    there is nothing to do."""
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
        done = 0 if comes else sequences.done[request]
        total = sequences.prompt[request] + sequences.made[request] if comes else sequences.held[request]
        room = world.step_tokens - decoding - prefill
        most = total - done if total - done < room else room
        take = chunk_in_time(world, lane, now, limit, prefill, context, done, most)
        if take == 0:
            break
        if comes:
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
        will_cache += total
        request = NOBODY
    if decoding + prefill == 0:
        return False
    lanes.fresh[lane] = fresh
    run_step(world, lane, now, prefill, context)
    return True


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
                learn_first(world, world.engines.model[world.engines.lane_engine[lane]], request, lanes.end[lane])
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
def learn_first(world: World, model: int, request: int, first: float) -> None:
    sequences = world.sequences
    expected = sequences.expected[request]
    slack = world.engines.slack[model]
    if expected - (sequences.deadline[request] - slack) >= 0.5 * slack:
        late = 1.0 if first > expected else 0.0
        stretch = world.learned[model, 4] + RATE * (late - SHARE)
        world.learned[model, 4] = later(stretch, 0.5) if stretch < 5.0 else 5.0


@compiled
def _finish(world: World, lane: int, request: int) -> None:
    lanes, answers = world.lanes, world.answers
    model = world.engines.model[world.engines.lane_engine[lane]]
    _release(world, lane, request)
    world.learned[model, 0] += 1
    world.learned[model, 1] += world.sequences.output[request]
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
def next_in_line(world: World, lane: int, now: float, sequences: int, cached: int) -> int:
    """The waiting request that the lane, with so many sequences and cached tokens, may pull now, or NOBODY."""
    engines, lines = world.engines, world.lines
    engine = engines.lane_engine[lane]
    line = engines.line[engine]
    if lines.count[line] == 0:
        return NOBODY
    # A lane takes no more than its share, so that one lane does not run full while others idle.
    if (sequences + 1) > (world.running[engine] + lines.count[line] + engines.stages[engine] - 1) // engines.stages[engine]:
        return NOBODY
    request = _first_suited(world, engine, now, sequences, cached)
    if request == NOBODY:
        return NOBODY
    model = engines.model[engine]
    tokens = world.sequences.prompt[request] + world.sequences.made[request]
    margin = mean_output(world.learned, model)
    if world.running[engine] > 0 and world.used[engine] + tokens + margin > engines.capacity[engine]:
        return NOBODY
    if _too_slow(world, engine, sequences + 1, cached + tokens + margin):
        return NOBODY
    return request


@compiled
def _first_suited(world: World, engine: int, now: float, decoding: int, cached: int) -> int:
    """The first in line whom this engine can give a first token in time. Drops those whom nobody can any more."""
    engines, lines, sequences = world.engines, world.lines, world.sequences
    request = lines.head[engines.line[engine]]
    skipped = 0
    while request != NOBODY and skipped < MOST_SKIPPED:
        behind = sequences.behind[request]
        tokens = sequences.prompt[request] + sequences.made[request]
        waits = sequences.made[request] == 0
        if waits and now > sequences.latest[request]:
            expire(world, engines.line[engine], request)
        elif tokens <= engines.capacity[engine] and (
            not waits
            or now + prefill_s(engines, engine, tokens, world.step_tokens - (decoding if LOADED else 0), decoding if LOADED else 0, cached if LOADED else 0) <= sequences.deadline[request]
        ):
            return request
        else:
            skipped += 1
        request = behind
    return NOBODY


@compiled
def _too_slow(world: World, engine: int, sequences: int, cached: float) -> bool:
    """Whether steps with so many decoding sequences in each lane would come too seldom for a goal on the group. A
    group where nothing runs may always begin."""
    engines = world.engines
    group = engines.group[engine]
    goal = engines.tpot[engines.model[engine]]
    total = 0.0
    slowest = 0.0
    for s in range(engines.stages[engine]):
        seconds = step_s(engines, engine, s, 0.0, sequences, 0.0, cached)
        total += seconds
        slowest = later(slowest, seconds)
    interval = later(total, slowest * engines.stages[engine])
    running = world.running[engine]
    for other in range(engines.first_of_group[group], engines.first_of_group[group + 1]):
        if other == engine or world.running[other] == 0:
            continue
        running += world.running[other]
        if engines.tpot[engines.model[other]] < goal:
            goal = engines.tpot[engines.model[other]]
        interval += others_s(world, other)
    return running > 0 and interval > goal


@compiled
def others_s(world: World, engine: int) -> float:
    """Seconds that one step of each busy lane of an engine takes of its group."""
    total = 0.0
    for lane in range(world.engines.first_lane[engine], world.engines.first_lane[engine + 1]):
        if world.lanes.decoding[lane] + world.lanes.fresh[lane] > 0 or world.lanes.prefilling[lane] != NOBODY:
            total += world.lanes.slowest[lane]
    return total


@compiled
def pull(world: World, engine: int, request: int, tokens: int) -> None:
    """Take a request out of its line and promise it cache for its prefill."""
    unlink(world, world.engines.line[engine], request)
    world.sequences.held[request] = tokens
    world.sequences.done[request] = 0
    world.sequences.pulled[request] = world.totals[PULLS]
    world.totals[PULLS] += 1
    world.used[engine] += tokens
    world.running[engine] += 1
    world.answers.group[request] = world.engines.group[engine]


@compiled_apart
def make_room(world: World, lane: int) -> None:
    """Send the lane's youngest sequences back to the front of the line until those who decode can have one token more.
    One that is alone on its engine, or would fit no engine again, has failed."""
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
    request = lanes.member[lane, youngest]
    for row in range(youngest, lanes.decoding[lane] - 1):
        lanes.member[lane, row] = lanes.member[lane, row + 1]
    lanes.decoding[lane] -= 1
    _release(world, lane, request)
    sequences.made[request] += lanes.steps[lane] - sequences.joined[request]
    _look_ahead(world, lane)
    return request


@compiled
def expire(world: World, line: int, request: int) -> None:
    learn_first(world, line, request, np.inf)
    unlink(world, line, request)
    world.answers.status[request] = EXPIRED


@compiled
def unlink(world: World, line: int, request: int) -> None:
    lines, sequences = world.lines, world.sequences
    ahead, behind = sequences.ahead[request], sequences.behind[request]
    if ahead == NOBODY:
        lines.head[line] = behind
    else:
        sequences.behind[ahead] = behind
    if behind == NOBODY:
        lines.tail[line] = ahead
    else:
        sequences.ahead[behind] = ahead
    lines.count[line] -= 1
    lines.tokens[line] -= sequences.prompt[request] + sequences.made[request]


@compiled
def join_front(world: World, line: int, request: int) -> None:
    lines, sequences = world.lines, world.sequences
    head = lines.head[line]
    sequences.ahead[request] = NOBODY
    sequences.behind[request] = head
    if head == NOBODY:
        lines.tail[line] = request
    else:
        sequences.ahead[head] = request
    lines.head[line] = request
    lines.count[line] += 1
    lines.tokens[line] += sequences.prompt[request] + sequences.made[request]


@compiled
def join_back(world: World, line: int, request: int) -> None:
    lines, sequences = world.lines, world.sequences
    tail = lines.tail[line]
    sequences.ahead[request] = tail
    sequences.behind[request] = NOBODY
    if tail == NOBODY:
        lines.head[line] = request
    else:
        sequences.behind[tail] = request
    lines.tail[line] = request
    lines.count[line] += 1
    lines.tokens[line] += sequences.prompt[request] + sequences.made[request]
