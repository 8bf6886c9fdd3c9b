"""What waits for engines, and which of it a lane pulls next. Compiled; docs/generation.md has the rules.

Knows nothing of arrivals or of rules: a rule is in the lines, deadlines and goals it is given.
"""

from __future__ import annotations

import numpy as np

from placement.clocks import NOBODY, later
from placement.compiled import compiled, compiled_apart
from placement.dispatch import EXPIRED
from placement.generation.engine_tables import PULLS, Learned, World
from placement.generation.step_cost import prefill_s, step_s

PRIOR_OUTPUT = 256.0
PRIOR_WEIGHT = 1.0
"""What answers are taken to be long before any is known, and how many known ones that belief is worth."""

UNUSED = 7.5
"""Tokens of cache that a sequence keeps from others beside its own: on average half of its last block of 16."""

MOST_SKIPPED = 64
"""How many waiting requests an engine that suits them badly may pass over to find one it can serve."""

LATE_SHARE = 0.1
STRETCH_STEP = 0.02
LEAST_STRETCH, MOST_STRETCH = 0.5, 5.0
"""The wait for a first token is reckoned so long that this share of the requests near their deadline wait
longer; how much one request moves the reckoning, and within what bounds (adaptive conformal inference, Gibbs
and Candès 2021)."""


@compiled
def mean_output(learned: Learned, model: int) -> float:
    """Tokens an answer is expected to have."""
    ended: float = learned.ended[model]
    tokens: float = learned.ended_tokens[model]
    return (PRIOR_WEIGHT * PRIOR_OUTPUT + tokens) / (PRIOR_WEIGHT + ended)


@compiled
def next_in_line(world: World, lane: int, now: float, sequences: int, cached: int) -> int:
    """The waiting request that the lane, with so many sequences and cached tokens, may pull now, or
    NOBODY."""
    engines = world.engines
    engine = engines.lane_engine[lane]
    waiting = world.lines.waiting[engines.line[engine]]
    if waiting == 0:
        return NOBODY
    # A lane takes no more than its share, so that one does not run full while others idle.
    if sequences * engines.stages[engine] >= world.running[engine] + waiting:
        return NOBODY
    request = _first_suited(world, engine, now, sequences, cached)
    if request == NOBODY:
        return NOBODY
    if engines.wake.size > 0 and _waits_its_turn(world, engine, request, now):
        return NOBODY
    tokens = world.sequences.prompt[request] + world.sequences.made[request]
    margin = mean_output(world.learned, engines.model[engine])
    if world.running[engine] > 0 and not _fits(world, engine, tokens + margin):
        return NOBODY
    if _too_slow(world, engine, sequences + 1, cached + tokens + margin):
        return NOBODY
    if _holds_up_another(world, engine, world.sequences.deadline[request]):
        return NOBODY
    return request


@compiled_apart
def another_is_sooner(world: World, lane: int, request: int, now: float, sequences: int, cached: int) -> bool:
    """Whether a lane of the model with a step in flight, which could take the request when that ends, would make its
    first token before this one, which runs so many sequences."""
    engines, lanes = world.engines, world.lanes
    mine = engines.lane_engine[lane]
    model = engines.model[mine]
    tokens = world.sequences.prompt[request] + world.sequences.made[request]
    margin = mean_output(world.learned, model)
    soonest = now + prefill_s(engines, mine, tokens, world.step_tokens, sequences, cached)
    for i in range(engines.first_of_model[model], engines.first_of_model[model + 1]):
        engine = engines.by_model[i]
        if engines.line[engine] != engines.line[mine]:
            continue
        if not _fits(world, engine, tokens + margin):
            continue
        for other in range(engines.first_lane[engine], engines.first_lane[engine + 1]):
            if other == lane or not lanes.in_flight[other] or lanes.prefilling[other] != NOBODY:
                continue
            size = lanes.decoding[other] + lanes.fresh[other]
            held = lanes.cached[other] + size
            at = lanes.end[other] + prefill_s(engines, engine, tokens, world.step_tokens, size, held)
            if at < soonest and not _too_slow(world, engine, size + 1, held + tokens + margin):
                return True
    return False


@compiled
def taken(world: World, engine: int) -> float:
    """Tokens of cache that nobody else can have."""
    tokens: float = world.used[engine] + world.running[engine] * UNUSED
    return tokens


@compiled
def _fits(world: World, engine: int, tokens: float) -> bool:
    """Whether one more sequence with so many tokens does."""
    fits: bool = taken(world, engine) + UNUSED + tokens <= world.engines.capacity[engine]
    return fits


@compiled
def is_asleep(world: World, engine: int) -> bool:
    engines = world.engines
    if engines.wake.size == 0 or engines.wake[engine] < 0:
        return False
    asleep: bool = world.clocks.awake[engines.group[engine]] != engines.model[engine]
    return asleep


@compiled_apart
def _waits_its_turn(world: World, engine: int, request: int, now: float) -> bool:
    """Whether the request must wait for another engine, of those of which one is awake: until it has ended what runs,
    or because somebody who came before waits for it."""
    engines = world.engines
    group = engines.group[engine]
    if engines.wake[engine] < 0:
        return False
    asleep = is_asleep(world, engine)
    for other in range(engines.first_of_group[group], engines.first_of_group[group + 1]):
        if other == engine or engines.wake[other] < 0:
            continue
        if asleep and world.running[other] > 0:
            return True
        head = _first_suited(world, other, now, 0, 0)
        if head != NOBODY and head < request:
            return True
    return False


@compiled
def _first_suited(world: World, engine: int, now: float, decoding: int, cached: int) -> int:
    """The first in line whom the engine, beside so many decoding sequences, can give a first token in time.
    Drops those whom no engine can any more, even idle."""
    engines, sequences = world.engines, world.sequences
    line = engines.line[engine]
    chunk = world.step_tokens - decoding
    request: int = world.lines.head[line]
    begin = now + engines.wake[engine] if is_asleep(world, engine) else now
    skipped = 0
    while request != NOBODY and skipped < MOST_SKIPPED:
        behind = sequences.behind[request]
        tokens = sequences.prompt[request] + sequences.made[request]
        waits = sequences.made[request] == 0
        if waits and now > sequences.latest[request]:
            expire(world, line, request)
        else:
            seconds = prefill_s(engines, engine, tokens, chunk, decoding, cached) if waits else -np.inf
            if tokens <= engines.capacity[engine] and begin + seconds <= sequences.deadline[request]:
                return request
            skipped += 1
        request = behind
    return NOBODY


@compiled
def _too_slow(world: World, engine: int, sequences: int, cached: float) -> bool:
    """Whether steps with so many decoding sequences in each lane would come too seldom for a goal on the
    group. A group where nothing runs may always begin."""
    engines = world.engines
    group = engines.group[engine]
    goal: float = engines.tpot[engines.model[engine]]
    total = 0.0
    slowest = 0.0
    for s in range(engines.stages[engine]):
        seconds = step_s(engines, engine, s, 0.0, sequences, 0.0, cached)
        total += seconds
        slowest = later(slowest, seconds)
    interval = later(total, slowest * engines.stages[engine])
    running: int = world.running[engine]
    for other in range(engines.first_of_group[group], engines.first_of_group[group + 1]):
        if other == engine or world.running[other] == 0:
            continue
        running += world.running[other]
        if engines.tpot[engines.model[other]] < goal:
            goal = engines.tpot[engines.model[other]]
        interval += others_s(world, other)
    return running > 0 and interval > goal


@compiled
def _holds_up_another(world: World, engine: int, deadline: float) -> bool:
    """Whether somebody who is due earlier waits for another engine of the group, which cannot begin beside what runs
    there: without this, whoever fills a group first keeps it."""
    engines, sequences = world.engines, world.sequences
    group = engines.group[engine]
    for other in range(engines.first_of_group[group], engines.first_of_group[group + 1]):
        head = world.lines.head[engines.line[other]]
        if other == engine or head == NOBODY or sequences.deadline[head] >= deadline:
            continue
        tokens = sequences.prompt[head] + sequences.made[head]
        lanes = engines.stages[other]
        cached = world.used[other] / lanes + tokens + mean_output(world.learned, engines.model[other])
        if tokens <= engines.capacity[other] and _too_slow(world, other, world.running[other] // lanes + 1, cached):
            return True
    return False


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


@compiled
def expire(world: World, line: int, request: int) -> None:
    """Drop a waiting request whose first token would be late. Only lines of a model have such."""
    unlink(world, line, request)
    world.answers.status[request] = EXPIRED
    learn_wait(world, line, request, np.inf)


@compiled
def learn_wait(world: World, model: int, request: int, first: float) -> None:
    """Compare when the first token came with when it was expected, for requests that had little time to
    spare."""
    sequences, learned = world.sequences, world.learned
    slack = world.engines.slack[model]
    expected_wait = sequences.expected[request] - (sequences.deadline[request] - slack)
    if slack < np.inf and expected_wait >= 0.5 * slack:
        late = 1.0 if first > sequences.expected[request] else 0.0
        stretch = learned.stretch[model] + STRETCH_STEP * (late - LATE_SHARE)
        learned.stretch[model] = later(stretch, LEAST_STRETCH) if stretch < MOST_STRETCH else MOST_STRETCH


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
    lines.waiting[line] -= 1
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
    lines.waiting[line] += 1
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
    lines.waiting[line] += 1
    lines.tokens[line] += sequences.prompt[request] + sequences.made[request]
