"""What leads from some running groups to a plan."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.plan import stage_bytes
from serving.controller.change import plan_change
from tests.serving.controller.worlds import group, plan, problem


def test_nothing_changes():
    change = plan_change({"a": group(0)}, plan(group(0)), problem())
    assert (change.kept, change.gone, change.fresh) == ((), (), ())


def test_a_model_comes_to_a_group_that_stays():
    change = plan_change({"a": group(0, models=["chat"])}, plan(group(0)), problem())
    assert [(kept.name, kept.loads_first) for kept in change.kept] == [("a", True)]
    assert not change.gone
    assert not change.fresh


def test_without_room_for_both_the_old_model_goes_first():
    world = problem(memory=220)  # chat with its cache takes 200, embed 50
    change = plan_change({"a": group(0, models=["chat"])}, plan(group(0, models=["embed"])), world)
    assert [kept.loads_first for kept in change.kept] == [False]


@pytest.mark.parametrize(("memory", "beside"), [(1000, True), (300, False)])
def test_another_shape_is_another_group(memory, beside):
    change = plan_change({"a": group(0, 1, pp=2)}, plan(group(0), group(1)), problem(memory=memory))
    assert change.gone == ("a",)
    assert [fresh.beside for fresh in change.fresh] == [beside, beside]


def test_groups_that_start_share_what_room_there_is():
    world = problem(memory=600)  # a group takes 250 on one device, 125 and the cache on each of two
    change = plan_change({"a": group(0)}, plan(group(0, 1, pp=2)), world)
    assert [fresh.beside for fresh in change.fresh] == [True]
    change = plan_change({"a": group(0)}, plan(group(0, parked=["embed"], models=["chat"])), world)
    assert change.gone == ("a",)  # what is parked cannot change while a group runs


SPECS = st.sampled_from(
    [
        plan(group(0), group(1)),
        plan(group(0, 1, pp=2)),
        plan(group(0, models=["chat"]), group(1, models=["embed"])),
        plan(group(1, 0, pp=2), group(2)),
        plan(group(2), group(3), group(0, 1, pp=2, models=["embed"])),
    ]
)


@given(SPECS, SPECS, st.integers(150, 1000))
def test_a_change_leads_to_the_plan_and_never_overfills_a_device(before, after, memory):
    world = problem(memory=memory)
    running = {f"g{index}": one for index, one in enumerate(before.groups)}
    change = plan_change(running, after, world)
    left = {name: one for name, one in running.items() if name not in change.gone}
    left |= {kept.name: kept.spec for kept in change.kept}
    reached = [*left.values(), *(fresh.spec for fresh in change.fresh)]
    assert sorted(reached, key=repr) == sorted(after.groups, key=repr)
    held = Counter()
    for one in [*running.values(), *(fresh.spec for fresh in change.fresh if fresh.beside)]:
        for stage, need in enumerate(stage_bytes(one, world)):
            for device in one.stage_devices(stage):
                held[device] += need
    for fresh in change.fresh:
        if fresh.beside:
            assert all(held[device] <= memory for device in fresh.spec.devices)
