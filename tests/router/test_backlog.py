"""Long queues of requests with different goals: what is left open is decided as if it had all been worked out."""

import asyncio
from random import Random

import numpy as np
import pytest

from placement.tables import Catalogue
from router import NotServed, Request, Router, RouterSettings, door
from router.floor_memory import MAY_LEAVE_OPEN
from router.virtual_time import run_virtually
from tests.placement.worlds import TICK, World, group, node, shape
from tests.router.fakes import Lost, collect, live, obedient_groups
from tests.router.test_same_decisions import assert_same


def long_queues(seed, requests=600, groups=6, load=1.3):
    """Models of one size and several goals, on groups of one or two stages that hold some of them, in bursts."""
    dice = Random(seed)
    goals = [8 * TICK, 30 * TICK, 100 * TICK, 10_000 * TICK]
    names = [f"m{number}" for number in range(dice.randint(2, 8))]
    models = [{"name": name, "profile": "p", "slo": dice.choice(goals)} for name in names]
    work = 4 * TICK
    profiles = {"p": {"shapes": [shape({1: [work]}), shape({1: [work / 2, work / 2]})]}}
    entries, device = [], 0
    for _ in range(groups):
        stages = dice.choice((1, 2))
        held = dice.sample(names, dice.randint(1, min(3, len(names))))
        entries.append(group([f"n/{device + s}" for s in range(stages)], held))
        device += stages
    arrivals, now = [], 0.0
    while len(arrivals) < requests:
        burst = dice.choice((1, 3, 40))
        now += burst * TICK * dice.choice((0, 1, 2)) * 4 / (groups * load)
        arrivals += [(round(now / TICK) * TICK, dice.randrange(len(names))) for _ in range(burst)]
    return World([node(device)], profiles, models, entries, arrivals[:requests])


@pytest.fixture
def open_rows(monkeypatch):
    """How many waited without a place after each arrival."""
    seen, arrive = [], door.arrive

    def spy(f, i, b, *more):
        found = arrive(f, i, b, *more)
        floor = door.unpack_floor(f, i, b)
        seen.append(int(floor.backlog.bounds[1] - floor.backlog.bounds[0]))
        assert seen[-1] == floor.backlog.of_model.sum()
        return found

    monkeypatch.setattr(door, "arrive", spy)
    return seen


def test_the_router_with_long_queues_decides_as_the_simulator(open_rows):
    fates = set()
    for seed in range(12):
        served, _ = assert_same(long_queues(seed), 1)
        fates |= set(served.values())
    assert {"served", "refused"} <= fates
    assert max(open_rows) > 50
    assert np.mean(np.array(open_rows) > 0) > 0.2


async def route(world, seed, may_leave_open=True, given_up=0.0):
    """Requests with goals of their own; what becomes of each."""
    loop, dice = asyncio.get_running_loop(), Random(seed)
    router = Router(world.problem, (Lost,), RouterSettings(max_batch=1, even_models=False), now=loop.time)
    groups = obedient_groups(world.problem, world.plan, Catalogue(world.problem))
    router.apply([live(one) for one in groups])
    if not may_leave_open:
        router._hall.pool.memory.ints[MAY_LEAVE_OPEN] = 0
    fates, tasks = {}, []

    async def consume(number, ticket):
        try:
            await collect(ticket)
            fates[number] = "served"
        except NotServed as error:
            fates[number] = error.reason

    for number, (arrival, model) in enumerate(world.arrivals):
        await loop.sleep_until(arrival)
        name = world.models[model]["name"]
        request = Request(id=str(number), model=name, tokens=1, slo_s=dice.choice((None, None, 0.5, 4.0, 1000.0)))
        try:
            ticket = router.submit(request, lambda one, n=number, m=name: one.infer(n, m))
        except NotServed as error:
            fates[number] = error.reason
            continue
        tasks.append(asyncio.create_task(consume(number, ticket)))
        if dice.random() < given_up:
            loop.call_later(dice.choice((0.01, 0.3, 2.0)), tasks[-1].cancel)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert router.waiting == router.running == router._hall.pool.queued == 0
    return fates


def test_a_place_worked_out_later_is_the_same(open_rows):
    for seed in range(4):
        world = long_queues(seed)
        assert run_virtually(route(world, seed)) == run_virtually(route(world, seed, may_leave_open=False))
    assert max(open_rows) > 20


def test_clients_that_go_leave_no_row_behind(open_rows):
    for seed in range(4):
        fates = run_virtually(route(long_queues(seed), seed, given_up=0.1))
        assert sum(fate == "served" for fate in fates.values()) > 100
    assert max(open_rows) > 20
