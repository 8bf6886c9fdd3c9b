"""The dispatch rules, compiled, against the plain reference beside them, on random small worlds."""

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from placement.clocks import NOBODY, with_ready
from placement.dispatch import REASONS, new_state
from placement.reference import serve
from placement.simulator import new_records, serve_deadline, serve_shortest_queue
from placement.tables import Catalogue
from tests.placement.worlds import worlds


def tables_of(world):
    tables = Catalogue(world.problem).tables(world.plan)
    replicas = sorted(
        (index, number)
        for number, group in enumerate(world.plan.groups)
        for index, model in enumerate(world.problem.models)
        if model.name in group.models + group.parked
    )
    names = [model.name for model in world.problem.models]
    ready = [world.ready.get((names[model], number), 0.0) for model, number in replicas]
    return with_ready(tables, np.array(ready))


def run_compiled(world, rule, max_batch, overtake, capacity):
    """Records of the compiled rules, and the tables they ran on."""
    tables = tables_of(world)
    models = len(world.models)
    state = new_state(len(world.groups), tables.latency.shape[3], models, capacity)
    workload, served, records = world.workload, np.zeros(models, np.int64), new_records(len(world.workload))
    if rule == "shortest-queue":
        serve_shortest_queue(workload.arrival, workload.model, tables, state.clocks, served, records)
    else:
        sizes = int((tables.batch_size <= max_batch).sum())
        serve_deadline(workload.arrival, workload.model, tables, state, sizes, overtake, served, records)
    assert served.tolist() == np.bincount(workload.model[records.status == 0], minlength=models).tolist()
    return tables, records


def assert_same(world, rule, max_batch, overtake=0.005, capacity=4096):
    fates = serve(
        world.problem,
        world.plan,
        world.workload,
        rule,
        max_batch,
        overtake=overtake,
        capacity=capacity,
        ready=world.ready,
    )
    tables, records = run_compiled(world, rule, max_batch, overtake, capacity)
    assert [REASONS[status] for status in records.status] == [fate.status for fate in fates]
    ran = [index for index, fate in enumerate(fates) if fate.group is not None]
    assert ran == np.flatnonzero(records.replica != NOBODY).tolist() == np.flatnonzero(records.batch >= 0).tolist()
    groups = tables.replica_group[records.replica[ran]].tolist()
    assert groups == [fates[index].group for index in ran]
    np.testing.assert_allclose(records.start[ran], [fates[index].start for index in ran], rtol=0, atol=1e-9)
    assert members(records.batch[ran].tolist()) == members([fates[index].batch for index in ran])
    return fates


def members(batches):
    """Which rows run together, whatever the batches are called."""
    return {frozenset(row for row, other in enumerate(batches) if other == batch) for batch in batches}


@settings(max_examples=250, deadline=None)
@given(worlds(), st.sampled_from((1, 2, 3, 16)), st.sampled_from((0.0, 0.005, 0.3, 1.0)))
def test_the_deadline_rule_is_the_reference(world, max_batch, overtake):
    fates = assert_same(world, "deadline", max_batch, overtake)
    for status in {fate.status for fate in fates}:
        event(status)
    if len({fate.batch for fate in fates if fate.group is not None}) < sum(fate.group is not None for fate in fates):
        event("a batch of several")


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_the_shortest_queue_rule_is_the_reference(world):
    assert_same(world, "shortest-queue", 1)


@settings(max_examples=100, deadline=None)
@given(worlds(loading=True), st.sampled_from(("deadline", "shortest-queue")))
def test_replicas_that_still_load(world, rule):
    fates = assert_same(world, rule, 4)
    names = [model.name for model in world.problem.models]
    for fate, (_, model) in zip(fates, world.arrivals, strict=True):
        if fate.group is not None:
            assert fate.start >= world.ready[names[model], fate.group]


@settings(max_examples=60, deadline=None)
@given(worlds(), st.integers(1, 4))
def test_a_full_queue(world, capacity):
    assert_same(world, "deadline", 4, overtake=0.3, capacity=capacity)
