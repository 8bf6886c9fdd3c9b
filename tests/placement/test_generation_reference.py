"""The compiled simulator of generating models against its plain reference, on small random worlds.

All costs and times are multiples of powers of two, so that sums are exact and ties are ties.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.cluster import Cluster
from placement.dispatch import REASONS
from placement.files import convert
from placement.generation.reference import Reference
from placement.generation.serve import Served, serve
from placement.plan import Plan, check_plan, takes_turns
from placement.problem import Model, Problem, Slo
from placement.profile import Profile
from placement.rules import RULES
from placement.tables import Catalogue
from placement.workload import Workload

SHAPES = ((1, 1), (1, 2), (2, 1), (1, 3))
TICK = 1 / 64


class GenerationWorld:
    """Drawn from a seed: 1-3 groups of mixed shapes, 1-3 models of which the first generates, beside each other or
    taking turns, caches from too small to ample, goals from hopeless to loose, traffic from idle to overloaded."""

    def __init__(self, seed: int, requests: int) -> None:
        random = Random(seed)
        shapes = [random.choice(SHAPES) for _ in range(random.randint(1, 3))]
        kinds = [True, *(random.random() < 0.4 for _ in range(random.randint(0, 2)))]
        self.step_tokens = random.choice((4, 16, 64))
        self.overhead = random.choice((0.0, TICK))
        # Halves of few tokens are exact; of many only all experts or none.
        expert_share = 0.5 if self.step_tokens <= 16 else 1.0
        profiles = [_profile(random, sorted(set(shapes)), generates, expert_share) for generates in kinds]
        alone = random.random() < 0.2
        models = tuple(
            Model(f"m{index}", profile, _slo(random, generates), alone=alone and generates)
            for index, (profile, generates) in enumerate(zip(profiles, kinds, strict=True))
        )
        devices = sum(tp * pp for tp, pp in shapes)
        cluster = convert(
            {"nodes": [{"name": "n", "devices": devices, "memory": 2**30, "host_memory": 2**30}]}, Cluster, "world"
        )
        self.workload = _workload(random, requests, len(kinds))
        self.problem = Problem(cluster, models, self.workload, self.overhead)
        self.plan = _plan(random, shapes, models)
        check_plan(self.plan, self.problem, "world")

    def serve(self, rule: Any, workload: Workload | None = None) -> Served:
        catalogue = Catalogue(self.problem)
        return serve(self.plan, workload or self.workload, rule, 4, catalogue, self.step_tokens)

    def reference(self, rule: str) -> Reference:
        reference = Reference(self.problem, self.plan, self.workload, rule, 4, self.step_tokens)
        reference.serve()
        return reference


def _profile(random: Random, shapes: list[tuple[int, int]], generates: bool, expert_share: float) -> Profile:
    entries = []
    has_experts = random.random() < 0.4
    for tp, pp in shapes:
        entry: dict[str, Any] = {"tp": tp, "pp": pp, "stage_memory": [2**20] * pp}
        entry["wake"] = random.choice((0, 4, 32)) * TICK
        latency = [random.randint(1, 8) * TICK for _ in range(pp)]
        entry["stage_latency"] = {"1": latency, "2": [1.5 * stage_s for stage_s in latency]}
        if generates:
            steps = [
                {
                    "fixed": random.randint(0, 2) / 256,
                    "weights": random.randint(1, 8) / 256,
                    "prefill_token": random.randint(1, 4) / 1024,
                    "prefill_context": random.choice((0, 1)) / 2**16,
                    "sequence": random.randint(0, 4) / 1024,
                    "cached_token": random.choice((0, 1, 2)) / 2**14,
                    "experts": random.randint(1, 8) / 256 if has_experts else 0.0,
                    "expert_share": expert_share if has_experts else 0.0,
                }
                for _ in range(pp)
            ]
            entry["generation"] = {
                "stages": steps,
                "kv_bytes_per_token": [2.0 ** random.randint(6, 8) for _ in range(pp)],
            }
        entries.append(entry)
    return convert({"shapes": entries}, Profile, "world")


def _slo(random: Random, generates: bool) -> Slo:
    patience = random.choice((8, 16, 64, 128, 512)) * TICK
    if not generates:
        return Slo(end_to_end=patience)
    if random.random() < 0.1:
        return Slo(tpot=random.choice((4, 32)) * TICK)
    return Slo(ttft=patience, tpot=random.choice((1, 2, 4, 8, 16)) * TICK)


def _plan(random: Random, shapes: list[tuple[int, int]], models: tuple[Model, ...]) -> Plan:
    groups, used, parks = [], 0, random.choice((0.0, 0.0, 0.7))
    for tp, pp in shapes:
        held = [model for model in models if random.random() < 0.8]
        parked = [model for model in held if model.generates and random.random() < parks]
        if any(model.alone for model in held):
            held = [model for model in held if model.generates]
            parked = held[1:]
        groups.append(
            {
                "devices": [f"n/{used + index}" for index in range(tp * pp)],
                "tp": tp,
                "pp": pp,
                "models": [model.name for model in held if model not in parked],
                "parked": [model.name for model in parked],
                "kv_bytes": {m.name: 64 * random.choice((90, 400, 1600, 6400)) for m in held if m.generates},
            }
        )
        used += tp * pp
    return convert({"groups": groups}, Plan, "world")


def _workload(random: Random, requests: int, models: int) -> Workload:
    gap = random.choice((0.5, 4.0, 16.0, 64.0))
    longest = random.choice((3, 20, 60))
    ticks, rows = 0, []
    for _ in range(requests):
        ticks += round(random.expovariate(1 / gap)) if random.random() < 0.7 else 0
        output = random.randint(1, longest) if random.random() < 0.9 else random.randint(0, 200)
        rows.append((ticks * TICK, random.randrange(models), random.randint(0, 90), output))
    arrival, model, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    return Workload(
        arrival.astype(np.float64), model.astype(np.int32), prompt.astype(np.int32), output.astype(np.int32)
    )


def worlds(max_requests: int = 60) -> st.SearchStrategy[GenerationWorld]:
    requests = st.integers(1, max_requests) | st.just(max_requests)
    return st.builds(GenerationWorld, st.integers(0, 2**32), requests)


def assert_same(world: GenerationWorld, served: Served, reference: Reference) -> None:
    answers = served.answers
    assert (served.steps, served.preemptions) == (reference.steps, reference.preemptions)
    for request in range(len(world.workload)):
        status, group = REASONS[answers.status[request]], answers.group[request]
        if request in reference.fates:
            fate = reference.fates[request]
            assert status == fate.status, request
            expected = fate.stages
            assert (group if group >= 0 else None) == fate.group, request
        else:
            sequence = reference.sequences[request]
            assert (status, group if group >= 0 else None) == (sequence.status, sequence.group), request
            np.testing.assert_equal(answers.first[request], sequence.first)
            np.testing.assert_equal(answers.finish[request], sequence.finish)
            spans = zip(sequence.began, sequence.ended or [(0.0, np.nan)] * 9, strict=False)
            expected = [(began[0], ended[1]) for began, ended in spans]
            if sequence.preempted and len(sequence.began) != len(sequence.ended):
                continue  # began and ended on groups of different shapes
        for stage, (start, end) in enumerate(expected):
            np.testing.assert_equal(answers.stage_start[request, stage], start)
            np.testing.assert_equal(answers.stage_end[request, stage], end)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=150, deadline=None)
@given(world=worlds())
def test_the_compiled_simulator_does_what_the_reference_says(world, rule):
    reference = world.reference(rule)
    assert_same(world, world.serve(rule), reference)
    assert reference.most_used <= 1.0
    for engine in reference.engines:  # all who began have ended, and who waits is too late
        assert engine.running == engine.used == 0
        assert all(sequence.made == 0 and sequence.deadline < math.inf for sequence in engine.line)


def test_the_random_worlds_see_everything_happen():
    """Guards the test above against worlds in which nothing is at stake."""
    seen: dict[str, int] = dict.fromkeys(REASONS, 0) | dict.fromkeys(
        ("preempted", "several lanes", "mixed", "experts", "turns"), 0
    )
    for seed in range(200):
        world = GenerationWorld(seed, 60)
        for rule in RULES:
            served = world.serve(rule)
            for status in served.answers.status:
                seen[REASONS[status]] += 1
            seen["preempted"] += served.preemptions
            generating = [model.generates for model in world.problem.models]
            seen["mixed"] += any(generating) and not all(generating)
            first = world.problem.models[0].profile.shapes[0].generation
            seen["experts"] += first is not None and first.stages[0].experts > 0
            seen["turns"] += any(len(takes_turns(group, world.problem)) > 1 for group in world.plan.groups)
            seen["several lanes"] += max(group.pp for group in world.plan.groups) > 1
    assert all(seen[name] > 20 for name in seen if name not in ("queue-full", "cancelled")), seen
