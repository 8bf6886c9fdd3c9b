"""One plan replaced by another: what is kept, what is loaded, and that nothing is lost."""

import msgspec
import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from placement.dispatch import EXPIRED, NO_REPLICA, REASONS, SERVED
from placement.errors import InputError
from placement.plan import Plan
from placement.rules import RULES
from placement.simulate import simulate
from placement.transition import simulate_transition
from tests.placement.checker import check_requests
from tests.placement.worlds import (
    BANDWIDTH,
    MIB,
    TICK,
    World,
    group,
    node,
    one_model_world,
    other_groups,
    random_world,
    shape,
    worlds,
)

TIMES = ("finish", "stage_start", "stage_end")
FIELDS = ("status", "group", "batch", *TIMES)
SEEDS = st.integers(0, 2**32)


def plan_of(*groups):
    return msgspec.convert({"groups": list(groups)}, Plan)


def statuses(outcome):
    return [REASONS[status] for status in outcome.status]


def assert_same_times(outcome, plain):
    for name in ("status", *TIMES):
        np.testing.assert_array_equal(getattr(outcome, name), getattr(plain, name))
    assert together(outcome) == together(plain)


def together(outcome):
    """Who ran with whom. (Batches that begin at one time may swap numbers, as their groups have new ones.)"""
    return {tuple(np.flatnonzero(outcome.batch == batch)) for batch in set(outcome.batch.tolist()) - {-1}}


@settings(max_examples=100, deadline=None)
@given(worlds(), st.sampled_from(RULES), st.sampled_from((1, 2, 16)), st.lists(st.floats(0, 1), max_size=3))
def test_the_same_plan_again_changes_nothing(world, rule, max_batch, shares):
    """Moments among the arrivals and between them; only the groups' numbers go on."""
    last = float(world.workload.arrival[-1])
    moments = sorted({round(share * last / TICK) * TICK for share in shares} - {0.0})
    plain = simulate(world.problem, world.plan, rule=rule, max_batch=max_batch)
    plans = [(moment, world.plan) for moment in (0.0, *moments)]
    outcome = simulate_transition(world.problem, plans, rule=rule, max_batch=max_batch)
    assert_same_times(outcome, plain)
    ran = plain.group >= 0
    assert (outcome.group[ran] % len(world.groups) == plain.group[ran]).all()
    assert len(outcome.plan.groups) == len(world.groups) * len(plans)
    assert outcome.busy_s.sum() == pytest.approx(plain.busy_s.sum())


@settings(max_examples=150, deadline=None)
@given(
    worlds(),
    SEEDS,
    st.sampled_from(RULES),
    st.sampled_from((1, 16)),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_what_happens_can_happen(world, seed, rule, max_batch, shares):
    """Every request has one honest status, no device does two things at once, each plan serves in its time
    only, and no replica before it can be loaded."""
    last = float(world.workload.arrival[-1])
    moments = [0.0, *sorted({round(share * last / TICK) * TICK for share in shares} - {0.0})]
    groups = [world.groups, *(other_groups(world, seed + turn) for turn in range(len(moments) - 1))]
    plans = [(moment, plan_of(*entry)) for moment, entry in zip(moments, groups, strict=True)]
    outcome = simulate_transition(world.problem, plans, rule=rule, max_batch=max_batch)
    arrival, model = zip(*world.arrivals, strict=True)
    rows = {name: getattr(outcome, name) for name in FIELDS}
    whole = {"groups": [entry for plan in groups for entry in plan]}
    faults = check_requests(world.problem_document(), world.profiles, whole, arrival, model, rows)
    # The checker does not know that a kept group's model is still awake.
    assert [fault for fault in faults if not fault.startswith("wake")] == []
    first = np.cumsum([0, *(len(plan) for plan in groups)])
    for phase, moment in enumerate(moments):
        mine = (outcome.group >= first[phase]) & (outcome.group < first[phase + 1])
        assert (outcome.stage_start[mine, 0] >= moment).all()
        if phase + 1 < len(moments):
            bound = world.workload.arrival if rule == "shortest-queue" else began(world, outcome)
            assert (bound[mine] < moments[phase + 1]).all()
        for request in np.flatnonzero(mine):
            name = world.models[model[request]]["name"]
            entry = whole["groups"][outcome.group[request]]
            if phase and not any(name in old["models"] + old["parked"] for old in groups[phase - 1]):
                event("a model from nowhere")
                assert outcome.stage_start[request, 0] >= moment + load_s(world, entry, name)
    for status in set(statuses(outcome)):
        event(status)


def began(world, outcome):
    """A lower bound of when each batch began: a parked model may have woken before its first stage."""
    return np.nan_to_num(outcome.stage_start[:, 0], nan=-1.0) - 12 * TICK


def load_s(world, entry, name):
    profile = next(model["profile"] for model in world.models if model["name"] == name)
    sizes = [
        max(option["stage_memory"])
        for option in world.profiles[profile]["shapes"]
        if (option["tp"], option["pp"]) == (entry["tp"], entry["pp"])
    ]
    return min(sizes) / BANDWIDTH


@settings(max_examples=40, deadline=None)
@given(worlds(), st.sampled_from(RULES))
def test_an_idle_group_more_changes_nothing(world, rule):
    """Whoever waits keeps the place in the schedule, with batches."""
    moment = float(world.workload.arrival[len(world.workload) // 2]) + TICK / 2
    spare = World(
        [*world.nodes, node(1, "spare", kind="k")],
        world.profiles,
        world.models,
        world.groups,
        world.arrivals,
        world.overhead,
    )
    more = plan_of(group(["spare/0"], [], tp=1), *world.groups)
    plain = simulate(spare.problem, world.plan, rule=rule)
    if (1, 1) not in {(entry["tp"], entry["pp"]) for entry in world.groups}:
        return
    outcome = simulate_transition(spare.problem, [(0.0, world.plan), (moment, more)], rule=rule)
    assert_same_times(outcome, plain)


@pytest.mark.parametrize("rule", RULES)
def test_swapping_models_at_no_cost_keeps_attainment(rule):
    world = World(
        nodes=[node(2, load_bandwidth=1e30)],
        profiles={"p": {"shapes": [shape({1: [0.25]})]}},
        models=[{"name": name, "profile": "p", "slo": 2.0} for name in "ab"],
        groups=[group(["n/0"], ["a"]), group(["n/1"], ["b"])],
        arrivals=[(0.2 * turn, turn % 2) for turn in range(200)],
    )
    swapped = plan_of(group(["n/0"], ["b"]), group(["n/1"], ["a"]))
    plans = [(0.0, world.plan), (10.1, swapped), (20.2, world.plan)]
    assert simulate(world.problem, world.plan, rule=rule).attainment == 1.0
    outcome = simulate_transition(world.problem, plans, rule=rule)
    assert outcome.attainment == 1.0
    assert set(outcome.group.tolist()) == set(range(6))


def moved(rule, arrivals, slo=20.0, moment=4.0):
    """ "a" moves from one device to another: 128 MiB at 64 MiB/s take 2 s. One request takes 1.5 s."""
    world = World(
        nodes=[node(2)],
        profiles={"p": {"shapes": [shape({1: [1.5]}, [128 * MIB])]}},
        models=[{"name": "a", "profile": "p", "slo": slo}],
        groups=[group(["n/0"], ["a"])],
        arrivals=[(arrival, 0) for arrival in arrivals],
    )
    plans = [(0.0, world.plan), (moment, plan_of(group(["n/1"], ["a"])))]
    return simulate_transition(world.problem, plans, rule=rule)


def test_a_moved_model_is_used_when_it_is_loaded():
    """What runs at 4 s finishes where it is; what waits and what comes goes to the new group, from 6 s on."""
    outcome = moved("deadline", [3.0, 3.5, 4.0, 7.0])
    assert statuses(outcome) == ["served"] * 4
    assert outcome.group.tolist() == [0, 1, 1, 1]
    assert outcome.stage_start[:, 0].tolist() == [3.0, 6.0, 7.5, 9.0]


def test_bound_requests_stay_where_they_are_bound():
    outcome = moved("shortest-queue", [3.0, 3.5, 4.0, 7.0])
    assert outcome.group.tolist() == [0, 0, 1, 1]
    assert outcome.stage_start[:, 0].tolist() == [3.0, 4.5, 6.0, 7.5]


def test_who_no_longer_fits_expires():
    """Where they were, all would have been in time, by 9 s; after the move there is room for two of three."""
    outcome = moved("deadline", [3.0, 3.0, 3.0, 3.0], slo=6.0)
    assert statuses(outcome) == ["served", "served", "served", "expired"]
    assert outcome.stage_start[:3, 0].tolist() == [3.0, 6.0, 7.5]
    nowhere = simulate_transition(
        outcome.problem, [(0.0, Plan(outcome.plan.groups[:1])), (4.0, Plan(()))], outcome.workload
    )
    assert statuses(nowhere) == ["served", "expired", "expired", "expired"]


def test_a_batch_that_begins_at_the_moment_belongs_to_the_new_plan():
    outcome = moved("deadline", [2.5, 2.5, 4.0])
    assert outcome.group.tolist() == [0, 1, 1]
    assert outcome.stage_start[:, 0].tolist() == [2.5, 6.0, 7.5]


def test_new_stages_wait_for_the_old_work_on_their_devices():
    """At 1 s both devices are busy, until 2 and 3 s; the pipeline made of them loads 0.5 s from then on."""
    world = World(
        nodes=[node(2)],
        profiles={"p": {"shapes": [shape({1: [2.0]}), shape({1: [1.0, 1.0]}, [32 * MIB, MIB])]}},
        models=[{"name": "a", "profile": "p", "slo": 20.0}],
        groups=[group(["n/0"], ["a"]), group(["n/1"], ["a"])],
        arrivals=[(0.0, 0), (0.875, 0), (1.5, 0)],
    )
    plans = [(0.0, world.plan), (1.0, plan_of(group(["n/0", "n/1"], ["a"])))]
    outcome = simulate_transition(world.problem, plans)
    assert outcome.group.tolist() == [0, 1, 2]
    assert outcome.stage_end[1, 0] == 2.875
    assert outcome.stage_start[2].tolist() == [2.875 + 0.5, 2.875 + 1.5]
    assert outcome.plan.groups[2].pp == 2


def test_models_load_one_after_the_other_and_residents_stay():
    """1 s for each of "b" and "c"; "a" is served meanwhile."""
    world = World(
        nodes=[node(1)],
        profiles={"p": {"shapes": [shape({1: [0.125]}, [64 * MIB])]}},
        models=[{"name": name, "profile": "p", "slo": 20.0} for name in "abc"],
        groups=[group(["n/0"], ["a"])],
        arrivals=[(4.25, 0), (4.5, 1), (6.5, 2), (6.5, 0)],
    )
    plans = [(0.0, world.plan), (4.0, plan_of(group(["n/0"], ["b", "a", "c"])))]
    outcome = simulate_transition(world.problem, plans, rule="deadline")
    assert outcome.stage_start[:, 0].tolist() == [4.25, 5.0, 6.5, 6.625]
    # Replaced once more by itself: what still loads goes on loading, and is not loaded twice.
    again = simulate_transition(world.problem, [*plans, (4.75, plans[1][1])])
    for name in ("status", "batch", *TIMES):
        np.testing.assert_array_equal(getattr(outcome, name), getattr(again, name))


def test_a_parked_model_wakes_where_its_weights_are():
    """Parked in the same node: it wakes (1 s) as soon as it is wanted. From another: first 1 s of loading."""
    world = World(
        nodes=[node(2, "n"), node(1, "o")],
        profiles={"p": {"shapes": [shape({1: [0.125]}, [64 * MIB])]}},
        models=[{"name": "a", "profile": "p", "slo": 20.0}],
        groups=[group(["n/0"], [], parked=["a"])],
        arrivals=[(0.0, 0), (4.0, 0), (9.0, 0)],
    )

    def starts(*groups):
        plans = [(0.0, world.plan), (3.5, plan_of(*groups))]
        return simulate_transition(world.problem, plans).stage_start[:, 0].tolist()

    assert starts(*world.groups) == [1.0, 4.0, 9.0]
    assert starts(group(["n/1"], [], parked=["a"])) == [1.0, 5.0, 9.0]
    assert starts(group(["o/0"], [], parked=["a"])) == [1.0, 5.5, 9.0]
    # Resident from now on: loaded from 3.5 to 4.5 s.
    assert starts(group(["n/0"], ["a"])) == [1.0, 4.5, 9.0]


def test_plans_are_checked():
    world = one_model_world({1: [1.0]}, slo=5.0, arrivals=[0.0])
    strange = plan_of(group(["n/7"], ["a"]))
    for plans in ([], [(1.0, world.plan)], [(0.0, world.plan), (2.0, world.plan), (2.0, world.plan)]):
        with pytest.raises(InputError, match="in force from"):
            simulate_transition(world.problem, plans)
    with pytest.raises(InputError, match=r"plan from 2 s: groups\[0\]: no device 'n/7'"):
        simulate_transition(world.problem, [(0.0, world.plan), (2.0, strange)])


def test_a_plan_can_be_empty():
    world = random_world(3)
    plans = [(0.0, Plan(())), (0.5, world.plan), (0.75, Plan(()))]
    outcome = simulate_transition(world.problem, plans)
    early = world.workload.arrival < 0.5
    assert (outcome.status[early] == NO_REPLICA).all()
    assert (outcome.status[world.workload.arrival >= 0.75] == NO_REPLICA).all()
    assert set(outcome.status.tolist()) <= {SERVED, EXPIRED, NO_REPLICA, 1}
