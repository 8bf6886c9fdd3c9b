"""Generating models, simulated: times that can be worked out by hand, and laws that hold in every world."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.clocks import NOBODY
from placement.cluster import Cluster
from placement.compiled import entry_point
from placement.dispatch import EXPIRED, FAILED, NO_REPLICA, QUEUE_FULL, REFUSED, SERVED
from placement.errors import InputError
from placement.files import convert
from placement.generation.engine_tables import engines_of
from placement.generation.serve import count_met, serve, simulate_generation
from placement.generation.step_cost import step_s
from placement.outcome import Outcome
from placement.plan import Plan, check_plan
from placement.problem import Model, Problem, Slo
from placement.profile import Profile, StepCost
from placement.rules import RULES, Rule
from placement.simulate import simulate
from placement.tables import Catalogue
from placement.workload import Workload
from tests.placement.test_generation_reference import GenerationWorld
from tests.placement.test_generation_reference import worlds as generation_worlds
from tests.placement.worlds import worlds as one_pass_worlds

ROOT = Path(__file__).parents[2]
KV_BYTES = 128
COST = StepCost(fixed=1e-3, weights=8e-3, prefill_token=9e-5, prefill_context=5e-9, sequence=9e-5, cached_token=3e-7)
EXPERTS = msgspec.structs.replace(COST, experts=2e-2, expert_share=0.125)
LOOSE = Slo(ttft=100.0, tpot=10.0)


def requests(*rows: tuple[float, int, int], model: int = 0) -> Workload:
    """(arrival, prompt tokens, output tokens) each."""
    arrival, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    models = np.full(len(rows), model, np.int32)
    return Workload(arrival.astype(np.float64), models, prompt.astype(np.int32), output.astype(np.int32))


def chat(
    workload: Workload,
    *costs: StepCost,
    slo: Slo = LOOSE,
    groups: int = 1,
    capacity: int = 100_000,
    **also: Any,
) -> tuple[Problem, Plan]:
    """Model "chat" on equal groups with one stage a cost; `also`: one-pass models with their stage
    latency."""
    stages = costs or (COST,)
    shape = {"tp": 1, "pp": len(stages), "stage_memory": [1] * len(stages)}
    generation = {"stages": stages, "kv_bytes_per_token": [KV_BYTES] * len(stages)}
    models = [Model("chat", convert({"shapes": [shape | {"generation": generation}]}, Profile, "test"), slo)]
    for name, (latency, goal) in also.items():
        profile = {"shapes": [shape | {"stage_latency": {"1": latency}}]}
        models.append(Model(name, convert(profile, Profile, "test"), Slo(end_to_end=goal)))
    devices = groups * len(stages)
    cluster = convert({"nodes": [{"name": "n", "devices": devices, "memory": 2**40}]}, Cluster, "test")
    entries = [
        {
            "devices": [f"n/{g * len(stages) + s}" for s in range(len(stages))],
            "tp": 1,
            "pp": len(stages),
            "models": [model.name for model in models],
            "kv_bytes": {"chat": capacity * KV_BYTES},
        }
        for g in range(groups)
    ]
    problem = Problem(cluster, tuple(models), workload, overhead=0.01)
    plan = convert({"groups": entries}, Plan, "test")
    check_plan(plan, problem, "test")
    return problem, plan


def run(problem: Problem, plan: Plan, rule: Rule = "deadline", step_tokens: int = 512) -> Outcome:
    return simulate_generation(problem, plan, problem.workload, rule, 1, Catalogue(problem), step_tokens)


@settings(deadline=None)
@given(
    costs=st.lists(st.floats(0, 1), min_size=6, max_size=6),
    share=st.floats(1e-3, 1),
    load=st.tuples(*(st.integers(0, most) for most in (512, 64, 10**6, 10**5))),
)
def test_a_compiled_step_costs_what_the_profile_says(costs, share, load):
    cost = StepCost(1e-3, *costs[:5], experts=costs[5], expert_share=share)
    problem, plan = chat(requests((0.0, 1, 1)), replace_cost(), cost)
    engines = engines_of(plan, Catalogue(problem), early=False)
    assert step_seconds(engines, 1, *load) == cost.seconds(*load)


@entry_point
def step_seconds(engines, stage, prefill, sequences, context, cached):
    return step_s(engines, 0, stage, prefill, sequences, context, cached)


@pytest.mark.parametrize("cost", [COST, EXPERTS])
@pytest.mark.parametrize("stages", [1, 3])
def test_a_lone_request_takes_its_prefill_chunks_and_one_step_a_token(stages, cost):
    prompt, output = 1200, 50
    outcome = run(*chat(requests((2.0, prompt, output)), *[cost] * stages))
    chunks = [(512, 0), (512, 512), (176, 1024)]
    prefill_s = stages * sum(cost.seconds(take, 0, take * done, 0) for take, done in chunks)
    decode_s = stages * sum(cost.seconds(0, 1, 0, prompt + made) for made in range(output - 1))
    assert outcome.first[0] == pytest.approx(2.0 + prefill_s + 0.01)
    assert outcome.finish[0] == pytest.approx(2.0 + prefill_s + decode_s + 0.01)
    assert outcome.time_per_token[0] == pytest.approx(decode_s / (output - 1))
    assert outcome.stage_start[0, 0] == 2.0
    assert outcome.stage_end[0, stages - 1] == pytest.approx(outcome.finish[0] - 0.01)
    assert outcome.batch[0] == NOBODY


def test_a_saturated_pipeline_makes_a_token_every_stages_times_the_slowest():
    stages = [replace_cost(weights=weights) for weights in (0.01, 0.02, 0.01)]
    outcome = run(*chat(requests(*[(0.0, 1, 500)] * 9), *stages))
    slowest = max(cost.seconds(0, 3, 0, 3 * 250) for cost in stages)
    np.testing.assert_allclose(outcome.time_per_token, 3 * slowest, rtol=0.02)
    assert outcome.busy_s[0] == pytest.approx(outcome.finish.max() * 4 / 6, rel=0.03)


def test_lanes_share_the_work_of_an_even_pipeline_without_gaps():
    outcome = run(*chat(requests(*[(0.0, 1, 500)] * 8), COST, COST))
    assert outcome.busy_s[0] == pytest.approx(outcome.finish.max(), rel=0.02)


def test_experts_that_few_sequences_leave_alone_let_them_be_served_where_a_full_engine_would_be_too_slow():
    cost = StepCost(fixed=1e-3, weights=4e-3, prefill_token=1e-5, sequence=1e-5, experts=0.1, expert_share=1 / 16)
    crowd = run(*chat(requests(*[(0.05 * n, 8, 20) for n in range(200)]), cost, slo=Slo(ttft=1.0, tpot=0.03)))
    served = crowd.status == SERVED
    assert 40 < served.sum() < 160
    assert crowd.time_per_token[served].max() <= 0.03 + 1e-9


def replace_cost(**changes: float) -> StepCost:
    fields = {name: getattr(COST, name) for name in COST.__struct_fields__}
    return StepCost(**(fields | changes))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stages", [1, 2])
def test_every_token_is_computed_once(rule, stages):
    """With these costs, stage seconds count tokens: 1 ms a prefilled one, 2 ms a decoded one."""
    cost = StepCost(prefill_token=1e-3, sequence=2e-3)
    rng = np.random.default_rng(0)
    rows = zip(np.sort(rng.uniform(0, 60, 200)), rng.integers(1, 900, 200), rng.integers(1, 60, 200), strict=True)
    workload = requests(*rows)
    problem, plan = chat(workload, *[cost] * stages, slo=Slo(ttft=1e5, tpot=1e5), groups=2, capacity=30_000)
    served = serve(plan, workload, rule, 1, Catalogue(problem))
    assert (served.answers.status == SERVED).all()
    assert served.preemptions == 0
    tokens_s = 1e-3 * workload.prompt_tokens.sum() + 2e-3 * (workload.output_tokens - 1).sum()
    assert served.busy_s.sum() / stages == pytest.approx(tokens_s)


def test_no_more_sequences_run_than_a_cache_of_blocks_holds():
    short = [(float(i), 2, 2) for i in range(40)]  # teach the engine a small margin
    workload = requests(*short, *[(50.0, 9, 4)] * 150)
    outcome = run(*chat(workload, capacity=1600), step_tokens=4096)
    together = np.sum(outcome.stage_start[:, 0] == 50.0)
    assert 80 <= together <= 100  # each has a block of 16 for its 9 to 12 tokens
    assert (outcome.status == SERVED).all()


def test_a_preempted_sequence_keeps_its_tokens_and_computes_its_cache_again():
    # Short answers teach the engine a small margin; then two long ones outgrow the cache together.
    short = [(0.0 + i, 2, 2) for i in range(40)]
    workload = requests(*short, (50.0, 100, 150), (50.0, 100, 150))
    cost = StepCost(fixed=1e-3, prefill_token=1e-3, sequence=2e-3)
    problem, plan = chat(workload, cost, capacity=300)
    served = serve(plan, workload, "deadline", 1, Catalogue(problem))
    assert served.preemptions == 1
    outcome = run(problem, plan)
    assert (outcome.status == SERVED).all()
    assert outcome.finish[-1] > outcome.finish[-2]
    # The cache is full with 150 tokens each: 51 of the younger's own are there, and it prefills 151 again.
    tokens_s = 1e-3 * (workload.prompt_tokens.sum() + 151) + 2e-3 * (workload.output_tokens - 1).sum() - 2e-3
    assert served.busy_s[0] == pytest.approx(tokens_s + 1e-3 * served.steps)


def test_what_can_never_fit_is_refused_and_what_outgrows_the_cache_alone_fails():
    workload = requests((0.0, 301, 1), (0.0, 300, 1), (10.0, 200, 101), (20.0, 200, 102))
    for rule in RULES:
        outcome = run(*chat(workload, capacity=300), rule)
        assert outcome.status.tolist() == [REFUSED, SERVED, SERVED, FAILED]
        assert np.isnan(outcome.finish[3])


def test_admission_is_exact_on_an_idle_engine():
    workload = requests((0.0, 1200, 5))
    lone_s = 3 * COST.fixed + 1200 * COST.prefill_token + COST.prefill_context * (512 * 512 + 176 * 1024)
    for margin, status in ((1e-9, SERVED), (-1e-6, REFUSED)):
        slo = Slo(ttft=lone_s + 0.01 + margin, tpot=1.0)
        assert run(*chat(workload, slo=slo)).status[0] == status
    assert run(*chat(workload, slo=Slo(ttft=9.0, tpot=1e-3))).status[0] == REFUSED  # each token would be late
    assert run(*chat(workload, slo=Slo(end_to_end=lone_s + 0.5))).status[0] == REFUSED  # 256 tokens expected
    assert run(*chat(workload, slo=Slo(end_to_end=lone_s + 5.0))).status[0] == SERVED


def test_a_model_without_an_engine_and_a_full_line():
    workload = requests(*[(0.0, 500, 5)] * 4200)
    problem, plan = chat(workload, slo=Slo(ttft=1e5, tpot=1e5))
    status = run(problem, plan).status
    assert np.bincount(status).tolist() == [4096, 0, 0, 0, 104]
    assert (status[4096:] == QUEUE_FULL).all()
    nowhere = convert({"groups": [{"devices": ["n/0"], "tp": 1, "pp": 1}]}, Plan, "test")
    for rule in RULES:
        assert (run(problem, nowhere, rule).status == NO_REPLICA).all()


def test_one_token_answers_meet_any_time_per_token():
    rows = [(0.05 * i, 300, 1) for i in range(100)]
    outcome = run(*chat(requests(*rows), slo=Slo(ttft=10.0, tpot=1e-6)), "shortest-queue")
    assert outcome.met.all()
    outcome = run(*chat(requests(*rows), slo=Slo(ttft=10.0, tpot=0.02)))
    assert outcome.met.all()


def test_new_prompts_do_not_slow_down_those_who_decode_beyond_their_goal():
    rows = [(0.0, 10, 400), *((0.5 + 0.1 * i, 2000, 5) for i in range(20))]
    for tpot in (0.015, 0.03, 0.1):
        outcome = run(*chat(requests(*rows), slo=Slo(ttft=60.0, tpot=tpot)))
        assert outcome.status[0] == SERVED
        assert outcome.time_per_token[0] <= tpot + 1e-9
    baseline = run(*chat(requests(*rows), slo=Slo(ttft=60.0, tpot=0.015)), "shortest-queue")
    assert baseline.time_per_token[0] > 0.015


def test_overload_is_refused_at_the_door_rather_than_served_late():
    rng = np.random.default_rng(1)
    rows = [(t, int(rng.integers(100, 3000)), int(rng.integers(1, 200))) for t in np.sort(rng.uniform(0, 300, 6000))]
    slo = Slo(ttft=1.0, tpot=0.1)
    ours = run(*chat(requests(*rows), slo=slo, groups=2))
    baseline = run(*chat(requests(*rows), slo=slo, groups=2), "shortest-queue")
    admitted = (ours.status == SERVED) | (ours.status == EXPIRED)
    assert 0.2 < admitted.mean() < 0.8
    assert ours.met.sum() > 0.95 * admitted.sum()
    assert ours.attainment > 0.3 > 10 * baseline.attainment


def test_models_that_share_groups_are_overloaded_alike():
    """The goal leaves little beside one full batch: whoever fills the groups first must not keep them."""
    random = np.random.default_rng(3)
    arrival = np.sort(random.uniform(0, 30, 2400))
    tokens = np.full(2400, 32, np.int32)
    workload = Workload(arrival, (arrival > 2).astype(np.int32) * random.integers(0, 2, 2400, np.int32), tokens, tokens)
    cost = StepCost(fixed=1e-3, weights=2e-2, prefill_token=9e-5, sequence=2e-3, cached_token=3e-7)
    problem, plan = chat(workload, cost, slo=Slo(ttft=1.0, tpot=0.06), groups=2)
    twin = replace(problem.models[0], name="twin")
    caches = dict.fromkeys(("chat", "twin"), 2**20)
    both = [msgspec.structs.replace(one, models=("chat", "twin"), kv_bytes=caches) for one in plan.groups]
    outcome = simulate(replace(problem, models=(problem.models[0], twin)), Plan(tuple(both)))
    late = arrival > 4
    first, second = (outcome.met[late & (workload.model == model)].mean() for model in range(2))
    assert 0.1 < first < 0.7
    assert 0.5 < second / first < 2


def test_engines_that_wait_share_the_arrivals():
    rows = [(0.04 * i, 100, 40) for i in range(400)]
    for rule in RULES:
        outcome = run(*chat(requests(*rows), groups=4), rule)
        assert outcome.met.all()
        assert np.bincount(outcome.group, minlength=4).min() >= 40


def test_one_pass_requests_wait_for_no_more_than_the_step_in_progress():
    slow = StepCost(fixed=1.0)
    both = requests((0.0, 1, 20), (4.5, 0, 0), (4.6, 0, 0))
    workload = replace(both, model=np.array([0, 1, 1], np.int32))
    for rule in RULES:
        problem, plan = chat(workload, slow, embed=([0.25], 2.0))
        outcome = run(problem, plan, rule)
        assert outcome.stage_start[1:, 0].tolist() == [5.0, 5.25]
        assert outcome.finish[0] == pytest.approx(20.5 + 0.01)
        assert outcome.batch.tolist() == [NOBODY, 0, 1]
        assert outcome.busy_s[0] == pytest.approx(20.5)


@settings(max_examples=60, deadline=None)
@given(world=one_pass_worlds(), rule=st.sampled_from(RULES))
def test_without_generating_models_it_is_the_one_pass_simulator(world, rule):
    nothing = np.zeros(len(world.workload), np.int32)
    workload = replace(world.workload, prompt_tokens=nothing, output_tokens=nothing)
    expected = simulate(world.problem, world.plan, workload, rule, 4)
    outcome = simulate_generation(world.problem, world.plan, workload, rule, 4, Catalogue(world.problem))
    for name in ("status", "group", "batch", "first", "finish", "stage_start", "stage_end"):
        np.testing.assert_array_equal(getattr(outcome, name), getattr(expected, name), name)
    np.testing.assert_allclose(outcome.busy_s, expected.busy_s)


def known_by(world: GenerationWorld, workload: Workload, rule: Rule, now: float) -> list[np.ndarray]:
    """All that has happened up to a time: who was turned away, and what began, came first or ended when."""
    answers = world.serve(rule, workload).answers
    arrived = workload.arrival <= now
    one_pass = ~np.array([model.generates for model in world.problem.models])[workload.model]
    turned_away = np.isin(answers.status, (REFUSED, NO_REPLICA, QUEUE_FULL)) & arrived
    times = [answers.stage_start[:, 0], answers.first, answers.finish]
    happened = [np.where(~(one_pass & (answers.begun > now)) & (column <= now), column, -1.0) for column in times]
    return [column[arrived] for column in (turned_away, *happened)]


@settings(max_examples=80, deadline=None)
@given(world=generation_worlds(), rule=st.sampled_from(RULES), share=st.floats(0, 1))
def test_no_decision_looks_at_what_comes_later(world, rule, share):
    now = float(np.quantile(world.workload.arrival, share)) + 1 / 128
    expected = known_by(world, world.workload, rule, now)
    until = world.workload.select(world.workload.arrival <= now)
    for found, wanted in zip(known_by(world, until, rule, now), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@settings(max_examples=80, deadline=None)
@given(world=generation_worlds(), rule=st.sampled_from(RULES), share=st.floats(0, 1), more=st.integers(1, 300))
def test_no_decision_looks_at_the_length_of_an_answer_that_has_not_ended(world, rule, share, more):
    now = float(np.quantile(world.workload.arrival, share)) + 1 / 128
    finish = world.serve(rule).answers.finish
    unknown = ~(finish <= now)
    output = np.maximum(world.workload.output_tokens, 1) + np.where(unknown, more, 0).astype(np.int32)
    longer = replace(world.workload, output_tokens=output)
    expected = known_by(world, world.workload, rule, now)
    for found, wanted in zip(known_by(world, longer, rule, now), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@settings(max_examples=60, deadline=None)
@given(world=generation_worlds(), rule=st.sampled_from(RULES))
def test_what_is_told_can_have_happened(world, rule):
    outcome = simulate_generation(
        world.problem, world.plan, world.workload, rule, 4, Catalogue(world.problem), world.step_tokens
    )
    served = outcome.status == SERVED
    arrival, generated = world.workload.arrival, outcome.batch == NOBODY
    assert (outcome.stage_start[served, 0] >= arrival[served]).all()
    assert (outcome.first[served] <= outcome.finish[served]).all()
    assert (outcome.first[served] > arrival[served]).all()
    assert (outcome.stage_end[served, 0] > outcome.stage_start[served, 0]).all()
    assert np.isnan(outcome.finish[~served]).all()
    assert (outcome.group[served] != NOBODY).all()
    if rule == "shortest-queue":  # nobody who was bound is left waiting
        assert not (outcome.status == EXPIRED).any()
    for g, group in enumerate(world.plan.groups):
        for stage in range(group.pp):
            rows = np.flatnonzero((outcome.group == g) & ~generated)
            _, heads = np.unique(outcome.batch[rows], return_index=True)
            rows = rows[heads]
            rows = rows[np.argsort(outcome.stage_start[rows, stage])]
            assert (outcome.stage_end[rows[:-1], stage] <= outcome.stage_start[rows[1:], stage]).all()
        last = max((outcome.finish[served & (outcome.group == g)]).tolist(), default=0.0)
        assert outcome.busy_s[g] <= last + 1e-9 or not served.all()


def test_counting_is_what_the_outcome_says_and_simulate_comes_here():
    world = GenerationWorld(7, 60)
    for rule in RULES:
        outcome = simulate(world.problem, world.plan, world.workload, rule, 4)
        counts = count_met(world.problem, world.plan, world.workload, rule, 4, Catalogue(world.problem))
        models = len(world.problem.models)
        assert counts.tolist() == [int(outcome.met[world.workload.model == m].sum()) for m in range(models)]
        assert counts.sum() > 0
        summary = outcome.summary()["models"]["m0"]
        assert {"ttft", "tpot"} <= set(summary)


def test_a_workload_without_tokens_is_refused():
    problem, plan = chat(requests((0.0, 1, 1)))
    bare = Workload(problem.workload.arrival, problem.workload.model)
    with pytest.raises(InputError, match="prompt_tokens"):
        simulate(problem, plan, bare)


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_the_benchmark_prints_one_json_line(folder, tmp_path):
    command = [sys.executable, "-m", "benchmarks.generation", *([] if folder else ["--tiny"])]
    environment = {"PENSTOCK_DATA": str(tmp_path / folder), "HOME": str(Path.home()), "PATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert ("skipped" in report) == bool(folder)
    if not folder:
        assert report["steps_per_s"] > 0
        assert 0 < report["ratio"] == pytest.approx(report["steps_per_s"] / 300_000, rel=1e-3)
