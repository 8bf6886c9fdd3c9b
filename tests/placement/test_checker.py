"""The checker finds nothing wrong with what the simulator does, and finds each kind of lie."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.outcome import write_requests
from placement.rules import RULES
from placement.simulate import simulate
from tests.placement.checker import check_plan_memory, check_requests
from tests.placement.worlds import MIB, World, group, node, shape, worlds

FIELDS = ("status", "group", "batch", "finish", "stage_start", "stage_end")


def rows_of(outcome):
    return {name: getattr(outcome, name).copy() for name in FIELDS}


def faults_of(world, rows):
    arrival, model = zip(*world.arrivals, strict=True)
    plan = {"groups": world.groups}
    return check_requests(world.problem_document(), world.profiles, plan, arrival, model, rows)


@settings(max_examples=120, deadline=None)
@given(worlds(), st.sampled_from(RULES), st.sampled_from((1, 2, 16)))
def test_the_simulator_passes(world, rule, max_batch):
    outcome = simulate(world.problem, world.plan, rule=rule, max_batch=max_batch)
    assert faults_of(world, rows_of(outcome)) == []
    assert check_plan_memory(world.problem_document(), world.profiles, {"groups": world.groups}) == []


def small_world():
    """Two stages, batches of two, and two parked models; "a" and "b" share a pipeline, "c" and "d"
    another."""
    return World(
        nodes=[node(4)],
        profiles={"p": {"shapes": [shape({1: [1.0, 1.5], 2: [1.25, 1.75]}, [2 * MIB, MIB])]}},
        models=[{"name": name, "profile": "p", "slo": 20.0} for name in "abcd"],
        groups=[group(["n/0", "n/1"], ["a", "b"]), group(["n/2", "n/3"], [], parked=["c", "d"])],
        arrivals=[(0.0, 0), (0.125, 0), (0.25, 0), (0.5, 1), (0.5, 2), (0.75, 3), (1.0, 2)],
        overhead=0.25,
    )


@pytest.fixture
def world():
    return small_world()


@pytest.fixture
def rows(world):
    rows = rows_of(simulate(world.problem, world.plan))
    assert rows["status"].tolist() == [0] * 7
    assert faults_of(world, rows) == []
    return rows


def kinds(faults):
    return {fault.split(":")[0] for fault in faults}


def shift(rows, request, seconds):
    """Move a request's whole batch in time."""
    members = rows["batch"] == rows["batch"][request]
    for name in ("stage_start", "stage_end", "finish"):
        rows[name][members] += seconds


def begins_before_it_arrives(rows):
    shift(rows, 3, 0.49 - rows["stage_start"][3, 0])


def two_batches_at_once(rows):
    rows["stage_start"][3], rows["stage_end"][3] = rows["stage_start"][1] + 0.5, rows["stage_end"][1] + 0.5
    rows["stage_end"][3] = rows["stage_start"][3] + [1.0, 1.5]
    rows["finish"][3] = rows["stage_end"][3, 1] + 0.25


def answers_late(rows):
    shift(rows, 6, 30.0)


def a_stage_takes_less(rows):
    rows["stage_end"][0, 0] -= 0.01


def stages_out_of_order(rows):
    rows["stage_start"][0, 1] -= 0.75
    rows["stage_end"][0, 1] -= 0.75
    rows["finish"][0] -= 0.75


def models_in_one_batch(rows):
    for name in FIELDS:
        rows[name][3] = rows[name][0]


def groups_in_one_batch(rows):
    rows["group"][2] = 1


def times_in_one_batch(rows):
    rows["stage_start"][2] += 1.0
    rows["stage_end"][2] += 1.0
    rows["finish"][2] += 1.0


def a_size_without_profile(rows):
    for name in FIELDS:
        rows[name][0] = rows[name][1]


def finishes_when_it_says(rows):
    rows["finish"][5] += 0.01


def runs_where_it_is_not(rows):
    rows["group"][0] = 1


def wakes_in_no_time(rows):
    shift(rows, 5, -1 / 64)


def first_wakes_in_no_time(rows):
    shift(rows, 4, -1 / 64)


def refused_but_ran(rows):
    rows["status"][0] = 1


def served_but_nowhere(rows):
    rows["group"][0] = -1


def unknown_status(rows):
    rows["status"][0] = 7


def a_row_too_few(rows):
    for name in FIELDS:
        rows[name] = rows[name][:-1]


LIES = {
    begins_before_it_arrives: "arrival",
    two_batches_at_once: "overlap",
    answers_late: "slo",
    a_stage_takes_less: "latency",
    stages_out_of_order: "order",
    models_in_one_batch: "batch",
    groups_in_one_batch: "batch",
    times_in_one_batch: "batch",
    a_size_without_profile: "batch",
    finishes_when_it_says: "finish",
    runs_where_it_is_not: "placement",
    wakes_in_no_time: "wake",
    first_wakes_in_no_time: "wake",
    refused_but_ran: "row",
    served_but_nowhere: "row",
    unknown_status: "row",
    a_row_too_few: "row",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_every_lie_is_found(world, rows, lie):
    lie(rows)
    assert LIES[lie] in kinds(faults_of(world, rows))


def test_the_plan_is_judged(world):
    document, plan = world.problem_document(), {"groups": world.groups}

    def faults(change):
        changed_document, changed_plan = copy.deepcopy(document), copy.deepcopy(plan)
        change(changed_document["cluster"]["nodes"][0], changed_plan["groups"])
        return kinds(check_plan_memory(changed_document, world.profiles, changed_plan))

    assert faults(lambda node, groups: None) == set()
    assert faults(lambda node, groups: node.update(memory=3 * MIB)) == {"memory"}
    assert faults(lambda node, groups: node.update(host_memory=5 * MIB)) == {"host-memory"}
    assert faults(lambda node, groups: groups[1].update(devices=["n/1", "n/2"])) == {"device"}


def test_what_is_written_can_be_checked(world, tmp_path):
    write_requests(tmp_path / "requests.npz", simulate(world.problem, world.plan))
    with np.load(tmp_path / "requests.npz") as rows:
        assert faults_of(world, dict(rows)) == []
