"""What the router knows of engines, in three flat arrays: the arrays of placement's engines, kept by what is observed.

Rows are slots: one for each request that waits or runs, and behind them one a lane, which stands for all prompts that
were handed to the lane and have no first token. Decides nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.clocks import NOBODY, Bools, Clocks, Floats, Ints
from placement.compiled import inlined
from placement.generation.engine_tables import COSTS, Answers, Engines, Lanes, Learned, Lines, Sequences, World
from placement.generation.first_token import Outlook

WORLD_HEADER = 10
STEP_TOKENS, OUT = 7, 8
"""What stands in `ints` behind the seven dimensions: the most tokens of a step, how many `Mirror.out` holds."""


class Mirror(NamedTuple):
    """The world as dispatch knows it, and what only the router keeps."""

    world: World
    outlook: Outlook
    slack: Floats  # [n] seconds from its arrival to when its first token is due
    out: Ints  # [n] who expired in a call
    pending: Ints  # [L] prompt tokens handed to the lane without a first token yet
    since: Floats  # [L] when the lane began with them
    event: Floats  # [L] when the lane last produced something
    handed: Ints  # [L] requests handed without a first token
    prefix: Ints  # [E] tokens of the next request's prompt that the engine has cached
    soonest: Floats  # [M] nobody in the model's line is too late before


class WorldMemory:
    """The three arrays, and the mirror as views of them."""

    def __init__(self, engines: Engines, stages: int, groups: int, slots: int, step_tokens: int) -> None:
        models, count, lanes = len(engines.tpot), len(engines.stages), len(engines.lane_engine)
        lines = len(engines.line_capacity)
        header = (models, count, lanes, stages, groups, lines, slots + lanes, step_tokens)
        self.floats: Floats = np.zeros(_floats(*header[:7]))
        self.ints: Ints = np.zeros(_ints(*header[:7]), np.int64)
        self.bools: Bools = np.zeros(models + lanes, np.bool_)
        self.status = np.zeros(slots + lanes, np.int8)
        self.ints[: len(header)] = header
        no_clocks = Clocks(np.zeros((groups, stages)), np.zeros(groups), np.zeros(groups, np.int64))
        self.mirror: Mirror = unpack_world(self.floats, self.ints, self.bools, self.status, no_clocks)
        for name, values in engines._asdict().items():
            getattr(self.mirror.world.engines, name)[...] = values
        world = self.mirror.world
        world.lanes.prefilling[:] = NOBODY
        world.lines.head[:] = NOBODY
        world.lines.tail[:] = NOBODY
        world.learned.stretch[:] = 1.0
        world.lanes.due[:] = np.inf
        self.mirror.soonest[:] = np.inf


def _floats(models: int, engines: int, lanes: int, stages: int, groups: int, lines: int, slots: int) -> int:
    return (
        engines * stages * COSTS
        + 3 * models
        + 3 * lanes
        + 4 * slots
        + 5 * models
        + 3 * lanes
        + 2 * lanes
        + groups
        + models
    )


def _ints(models: int, engines: int, lanes: int, stages: int, groups: int, lines: int, slots: int) -> int:
    plan = 5 * engines + lines + engines + 1 + lanes + groups + 1 + models + 1 + engines
    state = 5 * lanes + lanes + 10 * slots + 4 * lines + slots + 2 * engines + 3 + lanes
    return WORLD_HEADER + plan + state + slots + 2 * lanes + engines


@inlined
def unpack_world(f: Floats, i: Ints, b: Bools, status: NDArray[np.int8], clocks: Clocks) -> Mirror:
    """The views, in the order in which they stand. Of answers only status and group are kept."""
    models, count, lanes, stages, groups, lines, slots = i[0], i[1], i[2], i[3], i[4], i[5], i[6]
    x, y = 0, WORLD_HEADER
    cost = f[x : x + count * stages * COSTS].reshape((count, stages, COSTS))
    x += count * stages * COSTS
    e1, e2, e3, e4 = y + count, y + 2 * count, y + 3 * count, y + 4 * count
    engine_stages, capacity, group, model, line = i[y:e1], i[e1:e2], i[e2:e3], i[e3:e4], i[e4 : e4 + count]
    y = e4 + count
    line_capacity = i[y : y + lines]
    y += lines
    first_lane = i[y : y + count + 1]
    y += count + 1
    lane_engine = i[y : y + lanes]
    y += lanes
    first_of_group = i[y : y + groups + 1]
    y += groups + 1
    first_of_model = i[y : y + models + 1]
    y += models + 1
    by_model = i[y : y + count]
    y += count
    engines = Engines(
        cost,
        engine_stages,
        capacity,
        group,
        model,
        line,
        line_capacity,
        first_lane,
        lane_engine,
        first_of_group,
        first_of_model,
        by_model,
        b[:models],
        f[x : x + models],
        f[x + models : x + 2 * models],
        f[x + 2 * models : x + 3 * models],
        f[0:0],
    )
    x += 3 * models
    end, due, slowest = f[x : x + lanes], f[x + lanes : x + 2 * lanes], f[x + 2 * lanes : x + 3 * lanes]
    x += 3 * lanes
    l1, l2, l3, l4, l5 = y + lanes, y + 2 * lanes, y + 3 * lanes, y + 4 * lanes, y + 5 * lanes
    next_end = i[l5 : l5 + lanes]
    member = i[0:0].reshape((0, 0))
    no_times = f[0:0].reshape((0, 0))
    state = Lanes(
        end,
        b[models : models + lanes],
        i[y:l1],
        i[l1:l2],
        i[l2:l3],
        member,
        i[l3:l4],
        i[l4:l5],
        next_end,
        due,
        slowest,
        no_times,
        no_times,
    )
    y = l5 + lanes
    n = slots
    sequences = Sequences(
        i[y : y + n],
        i[y + n : y + 2 * n],
        f[x : x + n],
        f[x + n : x + 2 * n],
        f[x + 2 * n : x + 3 * n],
        i[y + 2 * n : y + 3 * n],
        i[y + 3 * n : y + 4 * n],
        i[y + 4 * n : y + 5 * n],
        i[y + 5 * n : y + 6 * n],
        i[y + 6 * n : y + 7 * n],
        i[y + 7 * n : y + 8 * n],
        i[y + 8 * n : y + 9 * n],
        i[y + 9 * n : y + 10 * n],
    )
    slack = f[x + 3 * n : x + 4 * n]
    x += 4 * n
    y += 10 * n
    k = lines
    waiting = Lines(i[y : y + k], i[y + k : y + 2 * k], i[y + 2 * k : y + 3 * k], i[y + 3 * k : y + 4 * k])
    y += 4 * k
    never = f[0:0]
    answers = Answers(status, i[y : y + n], i[0:0], never, never, never, no_times, no_times)
    y += n
    used, running = i[y : y + count], i[y + count : y + 2 * count]
    y += 2 * count
    totals = i[y : y + 3]
    y += 3
    chunk = i[y : y + lanes]
    y += lanes
    m = models
    learned = Learned(
        f[x : x + m], f[x + m : x + 2 * m], f[x + 2 * m : x + 3 * m], f[x + 3 * m : x + 4 * m], f[x + 4 * m : x + 5 * m]
    )
    x += 5 * m
    outlook = Outlook(f[x : x + lanes], chunk, f[x + lanes : x + 2 * lanes], f[x + 2 * lanes : x + 3 * lanes])
    x += 3 * lanes
    since, event = f[x : x + lanes], f[x + lanes : x + 2 * lanes]
    x += 2 * lanes
    busy, soonest = f[x : x + groups], f[x + groups : x + groups + models]
    world = World(
        engines, state, sequences, waiting, answers, clocks, used, running, learned, busy, totals, i[STEP_TOKENS]
    )
    out = i[y : y + n]
    y += n
    pending, handed = i[y : y + lanes], i[y + lanes : y + 2 * lanes]
    y += 2 * lanes
    return Mirror(world, outlook, slack, out, pending, since, event, handed, i[y : y + count], soonest)
