"""The live router decides as the simulator: one world through both, with groups that do what is profiled."""

import asyncio

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from placement.clocks import NOBODY
from placement.dispatch import REASONS
from placement.simulator import record_served
from placement.tables import Catalogue
from router import NotServed, Request, Router, RouterSettings
from router.virtual_time import run_virtually
from tests.placement.worlds import random_world, worlds
from tests.router.fakes import Lost, collect, live, obedient_groups


async def route(world, max_batch, travels, rule):
    """What became of each request: reason, group, start; and who ran together."""
    loop = asyncio.get_running_loop()
    catalogue = Catalogue(world.problem)
    travel_s = world.overhead if travels else 0.0
    batches = rule == "deadline"
    groups = obedient_groups(world.problem, world.plan, catalogue, travel_s=travel_s, batches=batches)
    bounds = RouterSettings(max_batch=max_batch, even_models=False, dispatch=rule)
    router = Router(world.problem, (Lost,), bounds, now=loop.time)
    router.apply([live(group) for group in groups])
    names = [model.name for model in world.problem.models]
    fates = {}

    async def consume(number, ticket):
        try:
            assert await collect(ticket) == [number]
            fates[number] = "served"
        except NotServed as error:
            fates[number] = error.reason

    tasks = []
    for number, (arrival, model) in enumerate(world.arrivals):
        await loop.sleep_until(arrival)
        request = Request(id=str(number), model=names[model], tokens=1)
        try:
            ticket = router.submit(request, lambda group, n=number, m=names[model]: group.infer(n, m))
            tasks.append(asyncio.create_task(consume(number, ticket)))
        except NotServed as error:
            fates[number] = error.reason
    await asyncio.gather(*tasks)
    starts = {
        request: (index, start, tuple(members))
        for index, group in enumerate(groups)
        for start, members in group.batches
        for request in members
    }
    assert router.waiting == router.running == 0
    assert router.statistics.settled <= 1
    return fates, starts


def assert_same(world, max_batch, travels=True, rule="deadline"):
    # A group without models says nothing to a router, but slows the waking of all of its shape in the simulator.
    world = world.with_groups([entry for entry in world.groups if entry["models"] + entry.get("parked", [])])
    fates, starts = run_virtually(route(world, max_batch, travels, rule))
    catalogue = Catalogue(world.problem)
    tables = catalogue.tables(world.plan)
    records = record_served(tables, catalogue.stages, world.workload, rule, max_batch)
    assert [fates[number] for number in range(len(world.arrivals))] == [REASONS[s] for s in records.status]
    ran = np.flatnonzero(records.replica != NOBODY).tolist()
    assert sorted(starts) == ran
    for number in ran:
        group, start, members = starts[number]
        assert group == tables.replica_group[records.replica[number]]
        assert start == records.start[number]
        assert sorted(members) == np.flatnonzero(records.batch == records.batch[number]).tolist()
    return fates, records


@settings(max_examples=120, deadline=None)
@given(worlds(), st.sampled_from((1, 2, 16)), st.booleans())
def test_the_router_decides_as_the_simulator(world, max_batch, travels):
    fates, _ = assert_same(world, max_batch, travels)
    for fate in set(fates.values()):
        event(fate)


@settings(max_examples=60, deadline=None)
@given(worlds(), st.booleans())
def test_the_router_decides_as_the_simulator_under_the_other_rule(world, travels):
    fates, _ = assert_same(world, 1, travels, "shortest-queue")
    assert set(fates.values()) <= {"served", "refused", "no-replica"}
    for fate in set(fates.values()):
        event(fate)


def test_one_recorded_scenario_sees_everything():
    seen, batches = set(), 0
    for seed in (18, 197, 218):
        world = random_world(seed, 400)
        fates, records = assert_same(world, 16)
        seen |= set(fates.values())
        batches += int((records.size > 0).sum())
    assert seen == {"served", "refused", "expired", "no-replica"}
    assert batches > 100
