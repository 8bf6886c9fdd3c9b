"""The laws on many more worlds than `make test` has time for: `make test-long`."""

from __future__ import annotations

import numpy as np
import pytest

from placement.dispatch import REASONS
from placement.reference import serve
from placement.rules import RULES, Rule
from placement.simulate import simulate
from tests.placement.test_checker import faults_of, rows_of
from tests.placement.test_generation_reference import GenerationWorld, assert_same
from tests.placement.worlds import random_world

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("max_batch", [1, 2, 4])
def test_the_compiled_rules_equal_the_reference_on_two_thousand_worlds(rule: Rule, max_batch: int) -> None:
    for seed in range(2_000):
        world = random_world(seed, requests=80)
        outcome = simulate(world.problem, world.plan, rule=rule, max_batch=max_batch)
        fates = serve(world.problem, world.plan, world.workload, rule, max_batch)
        assert [REASONS[status] for status in outcome.status] == [fate.status for fate in fates], seed
        assert outcome.group.tolist() == [-1 if fate.group is None else fate.group for fate in fates], seed


@pytest.mark.parametrize("rule", RULES)
def test_the_compiled_engines_equal_the_reference_on_a_thousand_worlds(rule: Rule) -> None:
    for seed in range(1_000):
        world = GenerationWorld(seed, 60)
        assert_same(world, world.serve(rule), world.reference(rule))


def test_the_checker_finds_nothing_wrong_in_a_long_overload() -> None:
    for seed in range(20):
        world = random_world(seed, requests=5_000)
        outcome = simulate(world.problem, world.plan)
        assert faults_of(world, rows_of(outcome)) == []
        assert np.isfinite(outcome.finish[outcome.status == 0]).all()
