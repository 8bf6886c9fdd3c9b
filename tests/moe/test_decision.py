"""Phase 1: changes when that pays, says exactly what to copy, and does not swing to and fro."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moe.decision import Terms, decide
from moe.pool import Pool
from moe.replication import Penstock, Task
from tests.moe.test_replication import zipf

POOL = Pool.even(8, 80, nodes=2)
TERMS = Terms(expert_bytes=10_000_000)


@pytest.fixture(scope="module")
def held():
    return Penstock().place(Task(zipf(), POOL))


def test_nothing_changes_while_the_load_stays(held):
    decision = decide(Task(zipf(), POOL, previous=held), TERMS)
    assert not decision.changes
    assert decision.placement.lists() == held.lists()
    assert decision.bytes_moved == 0


def test_a_new_load_is_worth_a_move_and_the_copies_lead_there(held):
    decision = decide(Task(zipf(seed=9), POOL, previous=held), TERMS)
    assert decision.changes
    assert decision.expected_after < decision.expected_before
    assert decision.gain_s > TERMS.margin * decision.cost_s > 0
    assert decision.bytes_moved == len(decision.copies) * TERMS.expert_bytes
    before, after = held.held(8), decision.placement.held(8)
    for copy in decision.copies:
        assert before[copy.layer, copy.source, copy.expert]
        assert not before[copy.layer, copy.device, copy.expert]
        before[copy.layer, copy.device, copy.expert] = True
    assert (before >= after).all()


def test_a_source_on_the_same_node_is_preferred(held):
    decision = decide(Task(zipf(seed=9), POOL, previous=held), TERMS)
    has = held.held(8)
    for copy in decision.copies:
        near = [at for at in range(8) if has[copy.layer, at, copy.expert] and POOL.node[at] == POOL.node[copy.device]]
        assert not near or copy.source in near


@pytest.mark.parametrize(
    "change", [{"expert_bytes": 10**12}, {"hold_s": 1e-3}, {"least_gain": 0.99}, {"bytes_per_s": 1.0}]
)
def test_what_costs_more_than_it_brings_is_refused(held, change):
    decision = decide(Task(zipf(seed=9), POOL, previous=held), replace(TERMS, **change))
    assert not decision.changes
    assert decision.placement.lists() == held.lists()


def test_having_changed_it_stays(held):
    task = Task(zipf(seed=9), POOL, previous=held)
    there = decide(task, TERMS).placement
    back = decide(replace(task, previous=there), TERMS)
    assert len(back.copies) <= 0.05 * 6 * 80


def test_loads_that_only_flicker_move_nothing_twice(held):
    """The same popularity, seen through batches of 512 tokens: what is gained is below what a move costs."""
    chance, load, place = np.random.default_rng(0), zipf(), held
    moved = 0
    for _ in range(5):
        seen = np.stack([chance.multinomial(3072, row / row.sum()) for row in load]).astype(np.float64)
        decision = decide(Task(seen, POOL, previous=place), TERMS)
        place, moved = decision.placement, moved + len(decision.copies)
    assert moved == 0
