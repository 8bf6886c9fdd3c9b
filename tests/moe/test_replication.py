"""The policies: laws that hold on any load and pool, and what each is there for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.replication import POLICIES, Eplb, Penstock, Scenarios, Static, Task, place, policy_named
from moe.replication.counting import counted, packed
from moe.split import Splitter, balancedness, even_levels
from placement.errors import InfeasibleError, InputError


def zipf(layers=6, experts=64, power=1.1, seed=0):
    chance = np.random.default_rng(seed)
    load = np.arange(1, experts + 1) ** -power * np.exp(0.2 * chance.standard_normal((layers, experts)))
    return 1000 * chance.permuted(load, axis=1)


def drifted(load, sigma=0.3, draws=8, seed=1):
    chance = np.random.default_rng(seed)
    return [load * np.exp(sigma * chance.standard_normal(load.shape)) for _ in range(draws)]


def best_balance(load, placement, pool):
    levels = Splitter(placement, pool.speed).levels(load)
    return float(balancedness(load, levels, pool.speed).mean())


def even_balance(load, placement, pool):
    return float(balancedness(load, even_levels(load, placement, pool.speed), pool.speed).mean())


@st.composite
def tasks(draw):
    devices, experts = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    slots = draw(st.lists(st.integers(0, 8), min_size=devices, max_size=devices))
    while sum(slots) < experts:
        slots[draw(st.integers(0, devices - 1))] += 1 + experts // devices
    speed = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=devices, max_size=devices))
    rows = st.lists(st.floats(0, 1000), min_size=experts, max_size=experts)
    load = np.array(draw(st.lists(rows, min_size=1, max_size=3)))
    pool = Pool(np.array(speed), np.array(slots, np.int64), np.zeros(devices, np.int64))
    previous = Static().place(Task(load, pool)) if draw(st.booleans()) else None
    history = np.stack([load[::-1], load]) if draw(st.booleans()) else None
    return Task(load, pool, history, previous)


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(task=tasks())
@settings(max_examples=60, deadline=None)
def test_every_expert_lives_somewhere_within_the_slots(name, task):
    placement = policy_named(name).place(task)
    assert placement.expert.shape == (len(task.load), task.pool.total)
    assert (placement.start == task.pool.start).all()
    assert (placement.replicas >= 1).all()
    for layer in placement.lists():
        for held, slots in zip(layer, task.pool.slots, strict=True):
            assert len(held) <= slots
            assert name == "eplb" or len(set(held)) == len(held)


@given(task=tasks())
@settings(max_examples=60, deadline=None)
def test_ours_is_no_worse_on_the_expected_load_than_packing_with_an_even_split(task):
    task = Task(task.load, task.pool, task.history)
    plain = packed(task.load, counted(task.load, task.pool.total, task.pool.devices), task.pool, distinct=True)
    even = even_levels(task.load, plain, task.pool.speed)
    ours = Splitter(Penstock().place(task), task.pool.speed).levels(task.load)
    assert (ours <= even * (1 + 1e-6) + 1e-9).all()


def test_static_is_in_order_without_replicas():
    placement = Static().place(Task(np.ones((1, 7)), Pool.even(3, 10)))
    assert placement.lists() == [[[0, 1, 2], [3, 4], [5, 6]]]


def test_eplb_by_hand():
    """Loads 90 40 20 10 in 6 slots: replicas 3 2 1 1 are too many, 3 1 1 1 is it: 30 30 30 40 20 10."""
    placement = Eplb().place(Task(np.array([[90.0, 40.0, 20.0, 10.0]]), Pool.even(2, 6)))
    assert placement.replicas.tolist() == [[3, 1, 1, 1]]
    assert even_levels(np.array([[90.0, 40.0, 20.0, 10.0]]), placement, np.ones(2)).tolist() == [80]


def test_lina_keeps_experts_at_home_and_fills_spare_slots_in_proportion():
    placement = policy_named("lina").place(Task(np.array([[60.0, 10.0, 10.0, 10.0]]), Pool.even(4, 8)))
    lists = placement.lists()[0]
    assert [held[0] for held in lists] == [0, 1, 2, 3]
    assert placement.replicas[0, 0] == 4


@pytest.mark.parametrize(("devices", "slots"), [(8, 72), (8, 80), (7, 75), (16, 80)])
def test_ours_beats_eplb_when_planned_for_and_when_loads_drift(devices, slots):
    load, pool = zipf(), Pool.even(devices, slots)
    ours, eplb = Penstock().place(Task(load, pool)), Eplb().place(Task(load, pool))
    assert best_balance(load, ours, pool) >= even_balance(load, eplb, pool)
    drift = drifted(load)
    assert np.mean([best_balance(later, ours, pool) for later in drift]) > np.mean(
        [best_balance(later, eplb, pool) for later in drift]
    )


def test_faster_devices_get_more():
    load = zipf()
    pool = Pool(np.array([1.0, 1.0, 2.0, 4.0]), np.full(4, 20), np.zeros(4, np.int64))
    assert best_balance(load, Penstock().place(Task(load, pool)), pool) > 0.98


def test_recent_batches_say_what_to_be_ready_for():
    """Two kinds of batches, each with its own popular experts: planned for their mean, either is served worse."""
    pool = Pool.even(4, 20)
    kinds = [zipf(4, 16, seed=seed) for seed in (1, 2)]
    load, history = np.mean(kinds, axis=0), np.stack(kinds * 4)
    knows = Penstock().place(Task(load, pool, history))
    blind = Penstock().place(Task(load, pool))
    assert sum(best_balance(kind, knows, pool) for kind in kinds) > sum(
        best_balance(kind, blind, pool) for kind in kinds
    )


def test_the_same_load_moves_nothing_or_hardly_anything():
    load, pool = zipf(), Pool.even(8, 80)
    first = Penstock().place(Task(load, pool))
    again = Penstock().place(Task(load, pool, previous=first))
    assert again.copies_from(first).sum() <= 0.02 * 6 * 80


def test_moves_that_cost_more_are_fewer_and_too_dear_ones_are_refused():
    load, pool = zipf(), Pool.even(8, 80)
    first = Penstock().place(Task(load, pool))
    task = Task(zipf(seed=9), pool, previous=first)
    moves = [int(Penstock(move_cost=cost).place(task).copies_from(first).sum()) for cost in (0.0, 0.005, 10.0)]
    assert moves[0] > moves[1] > moves[2] == 0


def test_what_is_moved_is_worth_it():
    load, pool = zipf(), Pool.even(8, 80)
    first = Penstock().place(Task(load, pool))
    task = Task(zipf(seed=9), pool, previous=first)
    policy = Penstock(move_cost=0.005)
    placed = policy.place(task)
    judges = Scenarios.of(task, 0.3, 16, 0.2, np.random.default_rng([0, 1]), jittered=True)
    gain = judges.expected(first, pool.speed) - judges.expected(placed, pool.speed)
    moves = placed.copies_from(first).sum(axis=(1, 2))
    assert (gain >= 0.005 * moves - 1e-9).all()


def test_what_is_judged_was_not_searched_with():
    """Recent batches come back as they were to whoever searches alone, and differently to each judge."""
    task = Task(zipf(2, 16), Pool.even(4, 20), np.stack([zipf(2, 16, seed=seed) for seed in range(10)]))

    def batches(seed, jittered):
        return Scenarios.of(task, 0.3, 8, 0.2, np.random.default_rng(seed), jittered).load[:, 1:]

    assert (batches(0, jittered=False) == task.history.transpose(1, 0, 2)).all()
    seen = [batches(0, jittered=False), batches(0, jittered=True), batches(1, jittered=True)]
    assert all(not np.isclose(one, other).any() for one, other in itertools.combinations(seen, 2))


def test_a_few_batches_are_filled_up_with_draws():
    load = zipf(2, 16)
    for batches, scenarios in ((0, 16), (1, 8), (7, 8), (9, 9)):
        task = Task(load, Pool.even(4, 20), np.stack([load] * batches) if batches else None)
        found = Scenarios.of(task, 0.3, 16, 0.2, np.random.default_rng(0))
        assert found.load.shape == (2, 1 + scenarios, 16)
        assert found.weight.sum() == pytest.approx(1)


def test_one_batch_is_no_reason_to_fit_it_alone():
    """From the first batch that was ever seen: what is placed serves loads that differ as well as what is placed
    without it."""
    load, pool = zipf(), Pool.even(8, 72)
    once, never = Penstock().place(Task(load, pool, load[None])), Penstock().place(Task(load, pool))
    served, other = (np.mean([best_balance(one, placed, pool) for one in drifted(load)]) for placed in (once, never))
    assert served > other - 0.002


def test_groups_stay_on_their_node():
    load, pool = zipf(3, 32), Pool.even(8, 48, nodes=4)
    for name in ("eplb", "penstock"):
        placement = place(policy_named(name), Task(load, pool, groups=8))
        node = pool.node[placement.device]
        for layer in range(3):
            for group in range(8):
                inside = (placement.expert[layer] // 4 == group) & (placement.expert[layer] >= 0)
                assert len(set(node[inside])) == 1


def test_groups_with_a_previous_placement_stay_where_moving_is_too_dear():
    load, pool = zipf(3, 32), Pool.even(8, 48, nodes=4)
    first = place(Penstock(), Task(load, pool, groups=8))
    kept = place(Penstock(move_cost=10.0), Task(zipf(3, 32, seed=5), pool, previous=first, groups=8))
    assert (kept.expert == first.expert).all()


def test_same_seed_same_placement():
    task = Task(zipf(), Pool.even(8, 80), history=np.stack([zipf(), zipf(seed=1)]))
    assert (Penstock(seed=3).place(task).expert == Penstock(seed=3).place(task).expert).all()


def test_memory_gives_the_slots():
    pool = Pool.of_memory([1000, 500, 0], expert_bytes=10, layers=5)
    assert pool.slots.tolist() == [20, 10, 0]
    assert Penstock().place(Task(zipf(5, 16), pool)).lists()[0][2] == []


def test_one_line_for_what_cannot_be():
    with pytest.raises(InfeasibleError, match="3 slots for 4 experts"):
        Task(np.ones((1, 4)), Pool.even(2, 3))
    with pytest.raises(InputError, match="negative"):
        Task(-np.ones((1, 4)), Pool.even(2, 8))
    with pytest.raises(InputError, match="each node needs a device"):
        Pool.even(2, 8, nodes=3)
    with pytest.raises(InputError, match="each must divide"):
        place(Penstock(), Task(np.ones((1, 8)), Pool.even(4, 8, nodes=2), groups=3))
    previous = ExpertPlacement.of_lists([[[0, 1], [2, 3]]])
    with pytest.raises(InputError, match="the previous placement has 1 layers of 4"):
        Task(np.ones((1, 8)), Pool.even(2, 8), previous=previous)


def test_a_previous_placement_on_other_slots_is_used_where_it_fits():
    held = ExpertPlacement.of_lists([[[0, 1], [2, 3]]])
    wider = held.fitted(Pool.even(2, 6))
    assert wider is not None
    assert wider.lists() == held.lists()
    assert held.fitted(Pool.even(2, 3)) is None
    assert held.fitted(Pool.even(3, 6)) is None
