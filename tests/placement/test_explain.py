"""What limits a model is found by changing one thing at a time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placement.example import tiny_problem
from placement.explain import Explanation, ModelExplanation, explain
from placement.plan import Group, Plan
from placement.planner import make_plan
from placement.problem import Slo
from placement.rules import Rule
from placement.search.effort import Effort
from placement.simulate import simulate
from placement.workload import Workload
from tests.placement.worlds import MIB, World, group, node, shape


def explained(world: World, rule: Rule = "deadline", max_batch: int = 16) -> Explanation:
    outcome = simulate(world.problem, world.plan, rule=rule, max_batch=max_batch)
    return explain(world.problem, world.plan, outcome, rule, max_batch)


def named(explanation: Explanation, name: str) -> ModelExplanation:
    return next(entry for entry in explanation.models if entry.model == name)


def two_devices(arrivals: list[tuple[float, int]], memory: int, **model: Any) -> World:
    """Model a on the first device, b on the second; one second a request."""
    return World(
        nodes=[node(2, memory=memory)],
        profiles={"p": {"shapes": [shape({1: [1.0]})]}},
        models=[
            {"name": "a", "profile": "p", "slo": 2.0, **model},
            {"name": "b", "profile": "p", "slo": 2.0},
        ],
        groups=[group(["n/0"], ["a"]), group(["n/1"], ["b"])],
        arrivals=arrivals,
    )


PAIRS = [(float(at), 0) for at in range(0, 40, 4) for _ in range(4)]
"""Four requests of a at once, every four seconds: one device answers two of them within two seconds."""


def test_nothing_limits_a_model_without_misses():
    explanation = explained(two_devices([(4.0 * n, n % 2) for n in range(10)], MIB))
    for entry in explanation.models:
        assert entry.limit == "nothing"
        assert entry.attainment == 1
        assert entry.one_more is None
    assert named(explanation, "a").groups == (0,)
    assert named(explanation, "a").shapes == ((1, 1),)
    assert explanation.gap == 0


def test_memory_limits_where_another_replica_would_help_but_not_fit():
    explanation = explained(two_devices(PAIRS, MIB))
    entry = named(explanation, "a")
    assert entry.attainment == 0.5
    assert entry.instead["memory"] == 1
    assert entry.limit == "memory"


def test_placement_limits_where_it_would_fit():
    assert named(explained(two_devices(PAIRS, 2 * MIB)), "a").limit == "placement"


def test_deadline_limits_where_patience_helps_most():
    """Both devices taken at once by four pairs: a replica on both gives half, twice the SLO all."""
    world = two_devices([(float(at), 0) for at in range(0, 80, 8) for _ in range(4)], MIB)
    alone = world.with_groups([group(["n/0"], ["a"])])
    entry = named(explained(alone), "a")
    assert entry.attainment == 0.5
    assert "memory" not in entry.instead
    assert entry.instead["deadline"] == 1
    assert entry.limit == "deadline"


def test_deadline_limits_where_even_an_idle_group_is_late():
    entry = named(explained(two_devices([(10.0 * n, 0) for n in range(4)], MIB, slo=0.25)), "a")
    assert entry.attainment == 0
    assert entry.limit == "deadline"


def test_capacity_limits_where_there_is_too_much_work():
    """Two requests a second for one device that answers one: patience runs out, less work helps."""
    world = two_devices([(0.5 * n, 0) for n in range(100)], MIB).with_groups([group(["n/0"], ["a"])])
    entry = named(explained(world), "a")
    assert entry.attainment is not None
    assert entry.attainment < 0.6
    assert entry.instead["capacity"] == 1
    assert entry.limit == "capacity"


def test_one_more_group_is_of_the_fewest_devices_that_hold_the_model():
    """Model a needs two devices, b one; the further group of b has room for b alone."""
    world = World(
        nodes=[node(3, memory=2 * MIB)],
        profiles={
            "wide": {"shapes": [shape({1: [0.5, 0.5]}, [2 * MIB] * 2), shape({1: [0.625]}, [2 * MIB], tp=2)]},
            "thin": {"shapes": [shape({1: [1.0]}, [2 * MIB])]},
        },
        models=[{"name": "a", "profile": "wide", "slo": 1.0}, {"name": "b", "profile": "thin", "slo": 2.0}],
        groups=[group(["n/0", "n/1"], ["a"]), group(["n/2"], ["b"])],
        arrivals=[(float(at), model) for at in range(0, 40, 4) for model in (0, 0, 1, 1, 1, 1)],
    )
    explanation = explained(world)
    wide, thin = named(explanation, "a").one_more, named(explanation, "b").one_more
    assert wide is not None
    assert thin is not None
    assert (wide.devices, wide.models, wide.attainment) == (2, ("a",), 1.0)
    assert wide.shape in ((1, 2), (2, 1))
    assert (thin.devices, thin.shape, thin.models, thin.attainment) == (1, (1, 1), ("b",), 1.0)
    assert thin.overall > simulate(world.problem, world.plan).attainment


def test_a_model_nowhere_and_one_never_asked():
    world = two_devices(PAIRS, MIB).with_groups([group(["n/1"], ["b"])])
    explanation = explained(world)
    assert named(explanation, "a").groups == ()
    assert named(explanation, "a").attainment == 0
    assert named(explanation, "a").limit == "memory"
    assert named(explanation, "b").attainment is None
    assert "nowhere" in explanation.text()
    assert "no requests" in explanation.text()


@pytest.mark.parametrize("rule", ["deadline", "shortest-queue"])
def test_summary_and_text_say_the_same(rule: Rule):
    explanation = explained(two_devices(PAIRS, MIB), rule)
    summary = explanation.summary()
    assert summary["models"]["a"]["limit"] == "memory"
    assert summary["models"]["a"]["one_more"]["shape"] == (1, 1)
    assert summary["gap"] == explanation.gap
    assert "memory" in explanation.text()
    assert explanation.attainment <= explanation.upper_bound


@pytest.mark.alone
def test_sixty_models_take_little_time():
    """All of them with misses."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 100, 12_000))
    profiles = {
        f"p{n}": {"shapes": [shape({1: [0.05]}, [4 * MIB]), shape({1: [0.025] * 2}, [2 * MIB] * 2)]} for n in range(60)
    }
    world = World(
        nodes=[node(8, memory=32 * MIB)],
        profiles=profiles,
        models=[{"name": f"m{n}", "profile": f"p{n}", "slo": 0.1} for n in range(60)],
        groups=[],
        arrivals=[(float(at), int(model)) for at, model in zip(times, rng.integers(0, 60, 12_000), strict=True)],
    )
    plan = make_plan(world.problem, effort=Effort(steps=5))
    outcome = simulate(world.problem, plan)
    explain(world.problem, plan, outcome, "deadline", 16)  # compiles
    started = time.perf_counter()
    explanation = explain(world.problem, plan, outcome, "deadline", 16)
    assert time.perf_counter() - started < 6  # 2 s on a machine that does nothing else
    assert sum(entry.missed > 0 for entry in explanation.models) > 50
    assert all(entry.limit != "not examined" for entry in explanation.models)


def test_a_model_that_generates():
    """One device, a step of a tenth of a second, and cache for few requests at once."""
    problem = tiny_problem(generates=True)
    tokens = np.full(60, 8, np.int32)
    crowd = Workload(np.repeat(np.arange(6) * 10.0, 10), np.zeros(60, np.int32), tokens, tokens)
    problem = replace(problem, models=(replace(problem.models[0], slo=Slo(ttft=1.0, tpot=0.2)),), workload=crowd)
    plan = Plan((Group(("n/0",), 1, 1, ("m",), kv_bytes={"m": 600}),))
    outcome = simulate(problem, plan)
    assert 0 < outcome.attainment < 1
    entry = explain(problem, plan, outcome, "deadline", 16).models[0]
    assert set(entry.instead) == {"deadline", "capacity"}
    assert entry.limit in ("deadline", "capacity")
    assert entry.one_more is not None
    assert entry.one_more.attainment > outcome.attainment
