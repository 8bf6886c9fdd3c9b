"""Small worlds worked out by hand, served by the plain reference and by the compiled rules alike."""

import math

import numpy as np
import pytest

from placement.reference import serve
from tests.placement.test_dispatch import assert_same
from tests.placement.worlds import MIB, World, group, node, one_model_world, shape


def fates_of(world, rule="deadline", max_batch=16, **options):
    """(status, group, start, finish) of each request, after the compiled rules have agreed."""
    fates = assert_same(world, rule, max_batch, **options)
    return [(fate.status, fate.group, fate.start, fate.stages[-1][1] if fate.stages else None) for fate in fates]


def batches_of(world, max_batch=16, **options):
    return [fate.batch for fate in assert_same(world, "deadline", max_batch, **options)]


def test_a_pipeline_takes_the_next_when_its_first_stage_is_free():
    world = one_model_world({1: [1.0, 2.0]}, slo=10.0, arrivals=[0.0, 0.0, 0.5])
    for rule in ("deadline", "shortest-queue"):
        assert fates_of(world, rule) == [
            ("served", 0, 0.0, 3.0),
            ("served", 0, 1.0, 5.0),
            ("served", 0, 2.0, 7.0),
        ]


def test_a_deadline_met_to_the_moment_is_met():
    world = one_model_world({1: [2.0]}, slo=4.5, arrivals=[0.0, 0.0, 0.0], overhead=0.5)
    for rule in ("deadline", "shortest-queue"):
        assert [fate[0] for fate in fates_of(world, rule)] == ["served", "served", "refused"]


def test_shortest_queue_looks_at_the_last_stage_only():
    """The second request is bound to the group that is idle, though the other would be done first; the third
    is refused where it is bound, though the other group had room."""
    world = World(
        nodes=[node(2, "f", kind="fast"), node(1, "s", kind="slow")],
        profiles={
            "p": {
                "shapes": [
                    shape({1: [0.5, 0.5]}, kind="fast"),
                    shape({1: [4.0]}, kind="slow"),
                ]
            }
        },
        models=[{"name": "a", "profile": "p", "slo": 4.0}],
        groups=[group(["f/0", "f/1"], ["a"]), group(["s/0"], ["a"])],
        arrivals=[(0.0, 0), (0.0, 0), (0.5, 0), (1.5, 0)],
    )
    bound = fates_of(world, "shortest-queue")
    assert bound == [
        ("served", 0, 0.0, 1.0),
        ("served", 1, 0.0, 4.0),
        ("served", 0, 0.5, 1.5),
        ("served", 0, 1.5, 2.5),
    ]
    assert [(group, finish) for _, group, _, finish in fates_of(world)] == [
        (0, 1.0),
        (0, 1.5),
        (0, 2.0),
        (0, 2.5),
    ]


def two_models(arrivals, slo_a, slo_b, latency_a, latency_b, **extra):
    """ "a" and "b" on one device."""
    return World(
        nodes=[node(1)],
        profiles={"pa": {"shapes": [shape(latency_a)]}, "pb": {"shapes": [shape(latency_b)]}},
        models=[
            {"name": "a", "profile": "pa", "slo": slo_a},
            {"name": "b", "profile": "pb", "slo": slo_b, **extra},
        ],
        groups=[group(["n/0"], ["a", "b"])],
        arrivals=arrivals,
    )


def test_the_earlier_deadline_goes_first():
    """Under `shortest-queue` the short request would be late behind the long ones, and is refused."""
    arrivals = [(0.0, 0), (0.0, 0), (0.5, 1)]
    world = two_models(arrivals, 20.0, 5.0, {1: [4.0]}, {1: [1.0]})
    assert [fate[3] for fate in fates_of(world)] == [4.0, 9.0, 5.0]
    assert fates_of(world, "shortest-queue")[2][0] == "refused"


def test_nobody_admitted_is_made_late_by_a_newcomer():
    """The newcomer could be in time only before the one who waits, who then would not be."""
    arrivals = [(0.0, 0), (0.0, 0), (0.5, 1)]
    world = two_models(arrivals, 8.0, 5.0, {1: [4.0]}, {1: [1.0]})
    assert [fate[0] for fate in fates_of(world)] == ["served", "served", "refused"]


def test_overtaking_drops_the_costlier_within_its_share():
    arrivals = [(0.0, 0), (0.0, 0), (0.5, 1)]
    world = two_models(arrivals, 8.0, 5.0, {1: [4.0]}, {1: [1.0]})
    assert [fate[0] for fate in fates_of(world, overtake=0.5)] == ["served", "expired", "served"]
    assert [fate[0] for fate in fates_of(world, overtake=0.49)] == ["served", "served", "refused"]
    # By weight the short one is now the dearer: 1 s / 0.125 against 4 s.
    weighted = two_models(arrivals, 8.0, 5.0, {1: [4.0]}, {1: [1.0]}, weight=0.125)
    assert [fate[0] for fate in fates_of(weighted, overtake=0.5)] == ["served", "served", "refused"]


def test_batches_form_among_those_who_wait():
    """While the first runs alone, four gather: two pairs or one four, as the limit allows."""
    latency = {1: [4.0], 2: [5.0], 4: [6.0]}
    world = one_model_world(latency, slo=100.0, arrivals=[0.0, 1.0, 1.5, 2.0, 2.5])
    assert batches_of(world) == [0, 1, 1, 1, 1]
    assert batches_of(world, max_batch=3) == [0, 1, 1, 2, 2]
    assert batches_of(world, max_batch=1) == [0, 1, 2, 3, 4]
    assert [fate[3] for fate in fates_of(world)] == [4.0, 10.0, 10.0, 10.0, 10.0]


def test_a_newcomer_behind_a_batch_that_reaches_over_others():
    """By deadline a pair's first, another, the pair's second: the newcomer behind them runs alone, after
    all."""
    arrivals = [(0.0, 1), (1.0, 0), (2.0, 1), (2.0, 0), (3.0, 1)]
    world = two_models(arrivals, 20.0, 19.5, {1: [4.0], 2: [5.0]}, {1: [4.0]})
    assert batches_of(world) == [0, 1, 2, 1, 3]
    assert [fate[3] for fate in fates_of(world)] == [4.0, 9.0, 13.0, 9.0, 17.0]


def test_a_batch_that_clears_nothing_sooner_does_not_form():
    world = one_model_world({1: [4.0], 2: [8.0]}, slo=100.0, arrivals=[0.0, 1.0, 1.5])
    assert batches_of(world) == [0, 1, 2]


def test_a_batch_that_clears_nothing_sooner_still_makes_room():
    """The pair is slower than two alone, but leaves the first stage earlier: only so is the last one in
    time."""
    world = World(
        nodes=[node(2)],
        profiles={
            "pa": {"shapes": [shape({1: [3.0, 3.0], 2: [3.0, 6.5]})]},
            "pb": {"shapes": [shape({1: [5.0, 0.125]})]},
        },
        models=[{"name": "a", "profile": "pa", "slo": 14.0}, {"name": "b", "profile": "pb", "slo": 14.5}],
        groups=[group(["n/0", "n/1"], ["a", "b"])],
        arrivals=[(0.0, 1), (0.5, 0), (0.5, 0), (0.5, 1)],
    )
    assert [fate[3] for fate in fates_of(world)] == [5.125, 14.5, 14.5, 14.625]
    assert [fate[3] for fate in fates_of(world, max_batch=1)] == [5.125, 11.0, 14.0, None]


def test_a_batch_keeps_the_deadline_of_its_first():
    """Together they would end at 9, the first must end at 8.5: it goes alone."""
    latency = {1: [4.0], 2: [5.0]}
    world = two_models([(0.0, 1), (0.5, 0), (1.5, 0)], 8.0, 100.0, latency, {1: [4.0]})
    assert [fate[3] for fate in fates_of(world)] == [4.0, 8.0, None]
    roomy = two_models([(0.0, 1), (0.5, 0), (1.5, 0)], 8.5, 100.0, latency, {1: [4.0]})
    assert [fate[3] for fate in fates_of(roomy)] == [4.0, 9.0, 9.0]


def test_a_parked_model_wakes_stage_by_stage():
    """2 and 4 MiB at 1 MiB a tick of 1/64 s: the second stage is awake at 4/64, the first at 2/64."""
    tick = 1 / 64
    world = World(
        nodes=[node(2)],
        profiles={"p": {"shapes": [shape({1: [tick, tick]}, [2 * MIB, 4 * MIB])]}},
        models=[{"name": name, "profile": "p", "slo": 1.0} for name in "ab"],
        groups=[group(["n/0", "n/1"], [], parked=["a", "b"])],
        arrivals=[(0.0, 0), (0.5, 0), (0.75, 1)],
    )
    for rule in ("deadline", "shortest-queue"):
        finishes = [fate[3] for fate in fates_of(world, rule)]
        assert finishes == [5 * tick, 0.5 + 2 * tick, 0.75 + 5 * tick]
    fates = serve(world.problem, world.plan, world.workload, "deadline", 1)
    assert fates[0].start == 0.0
    assert fates[0].stages == [(2 * tick, 3 * tick), (4 * tick, 5 * tick)]


def test_a_replica_is_not_used_before_it_is_loaded():
    world = one_model_world({1: [1.0]}, slo=5.0, arrivals=[0.0, 0.0, 9.0], ready={("a", 0): 3.5})
    for rule in ("deadline", "shortest-queue"):
        assert fates_of(world, rule) == [
            ("served", 0, 3.5, 4.5),
            ("refused", None, pytest.approx(math.nan, nan_ok=True), None),
            ("served", 0, 9.0, 10.0),
        ]


def test_a_loading_replica_is_not_the_shortest_queue():
    world = one_model_world({1: [1.0]}, slo=5.0, arrivals=[0.0, 0.0], groups=2, ready={("a", 0): 3.5})
    assert [fate[:2] for fate in fates_of(world, "shortest-queue")] == [("served", 1)] * 2


def test_no_replica_and_a_full_queue():
    world = two_models([(0.0, 0), (0.0, 0), (0.0, 0), (0.0, 0), (0.0, 1)], 99.0, 99.0, {1: [4.0]}, {1: [1.0]})
    world = world.with_groups([group(["n/0"], ["a"])])
    statuses = [fate[0] for fate in fates_of(world, capacity=2)]
    assert statuses == ["served", "served", "served", "queue-full", "no-replica"]
    assert fates_of(world, "shortest-queue")[4][0] == "no-replica"


def test_a_replica_that_is_quicker_wins_over_one_that_is_free():
    world = World(
        nodes=[node(1, "f", kind="fast"), node(1, "s", kind="slow")],
        profiles={"p": {"shapes": [shape({1: [1.0]}, kind="fast"), shape({1: [4.0]}, kind="slow")]}},
        models=[{"name": "a", "profile": "p", "slo": 5.0}],
        groups=[group(["s/0"], ["a"]), group(["f/0"], ["a"])],
        arrivals=[(0.0, 0)] * 6,
    )
    assert [fate[1] for fate in fates_of(world)] == [1, 1, 1, 0, 1, 1]
    assert np.isfinite([fate[2] for fate in fates_of(world)]).all()
