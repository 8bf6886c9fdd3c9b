"""Prompts cut by a goal in time: the engine on simulated time against the planner's simulator, and what it learns."""

import heapq

import msgspec
import numpy as np
import pytest

from placement.cluster import Cluster
from placement.files import convert
from placement.generation.reference import Reference
from placement.plan import Plan
from placement.problem import Model, Problem, Slo
from placement.profile import Profile, StepCost
from placement.workload import Workload
from serving.engine import Limits, TokenGoal, make_generator
from serving.engine.goal import step_load
from serving.engine.step import GenerateResult
from serving.sampling import SamplingParams
from serving.worker.emulated_clocks import StageClocks

COST = StepCost(fixed=1e-3, weights=8e-3, prefill_token=9e-5, prefill_context=5e-9, sequence=9e-5, cached_token=3e-7)
EXPERTS = msgspec.structs.replace(COST, weights=3e-3, experts=5e-3, expert_share=0.05)
TPOT_S = 0.03
STEP_TOKENS = 512


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def serve(requests, costs, tpot_s=TPOT_S, truth=1.0, noise=0.0):
    """(arrival, prompt, output) each, on an engine whose steps take `truth` times their cost, give or take `noise`: the
    times of all tokens of each request, and the goal."""
    clock, clocks, luck = Clock(), StageClocks(len(costs)), np.random.default_rng(0)
    goal = None if tpot_s is None else TokenGoal(tpot_s, costs, clock)
    engine = make_generator(
        "m",
        vocabulary=10**9,
        max_positions=10**6,
        eos_token_ids=(),
        blocks=10**5,
        lanes=len(costs),
        limits=Limits(STEP_TOKENS),
        goal=goal,
    )
    times = [[] for _ in requests]
    arrivals = [(at, index) for index, (at, *_) in enumerate(requests)]
    ends, wakes = [], []
    while arrivals or ends or wakes:
        clock.now = min(queue[0][0] for queue in (arrivals, ends, wakes) if queue)
        while ends and ends[0][0] <= clock.now:
            _, number, rows = heapq.heappop(ends)
            result = GenerateResult(number, "m", np.zeros(rows, np.int64), np.zeros(rows, bool))
            for output in engine.complete(result):
                times[int(output.request)].append(clock.now)
        while arrivals and arrivals[0][0] <= clock.now:
            _, index = arrivals.pop(0)
            _, prompt, output = requests[index]
            tokens = [index * 10_000 + place for place in range(prompt)]  # no common prefixes
            engine.submit(str(index), tokens, SamplingParams(max_tokens=output))
        while wakes and wakes[0][0] <= clock.now:
            heapq.heappop(wakes)
        if clocks.free[0] <= clock.now and (taken := engine.take()) is not None:
            took = truth * luck.uniform(1 - noise, 1 + noise)
            seconds = [took * cost.seconds(*step_load(taken.chunks)) for cost in costs]
            end = clocks.enter(clock.now, seconds)
            heapq.heappush(ends, (end, taken.number, sum(chunk.samples for chunk in taken.chunks)))
            heapq.heappush(wakes, (clocks.free[0],))
    return times, goal


def simulate(requests, costs):
    """What the planner's simulator says of the same requests: first and last token of each."""
    stages = len(costs)
    arrival, prompt, output = (np.array(column) for column in zip(*requests, strict=True))
    workload = Workload(arrival, np.zeros(len(arrival), np.int32), prompt.astype(np.int32), output.astype(np.int32))
    shape = {"tp": 1, "pp": stages, "stage_memory": [1] * stages}
    shape |= {"generation": {"stages": costs, "kv_bytes_per_token": [1] * stages}}
    model = Model("m", convert({"shapes": [shape]}, Profile, "test"), Slo(ttft=1000.0, tpot=TPOT_S))
    cluster = convert({"nodes": [{"name": "n", "devices": stages, "memory": 2**40}]}, Cluster, "test")
    group = {"devices": [f"n/{stage}" for stage in range(stages)], "tp": 1, "pp": stages, "models": ["m"]}
    plan = convert({"groups": [group | {"kv_bytes": {"m": 10**6}}]}, Plan, "test")
    problem = Problem(cluster, (model,), workload, overhead=0.0)
    reference = Reference(problem, plan, workload, "deadline", 1, STEP_TOKENS)
    reference.serve()
    return [(reference.sequences[index].first, reference.sequences[index].finish) for index in range(len(requests))]


def crowd(seed, rate, count=60):
    generator = np.random.default_rng(seed)
    arrival = np.cumsum(generator.exponential(1 / rate, count))
    prompt, output = generator.integers(20, 2000, count), generator.integers(5, 120, count)
    return [(float(at), int(p), int(o)) for at, p, o in zip(arrival, prompt, output, strict=True)]


def mean_gaps(times):
    return [(row[-1] - row[0]) / (len(row) - 1) for row in times]


@pytest.mark.parametrize("costs", [(COST,), (COST, COST), (EXPERTS,)])
@pytest.mark.parametrize("seed", range(3))
def test_tokens_come_when_the_simulator_says(costs, seed):
    requests = crowd(seed, rate=4.0)
    times, _ = serve(requests, costs)
    for row, (first, finish) in zip(times, simulate(requests, costs), strict=True):
        assert row[0] == pytest.approx(first, abs=1e-6)
        assert row[-1] == pytest.approx(finish, abs=1e-6)


def test_the_goal_is_kept_where_prompts_alone_would_break_it():
    requests = crowd(7, rate=6.0)
    free, _ = serve(requests, (COST,), tpot_s=None)
    kept, _ = serve(requests, (COST,))
    assert sum(gap > TPOT_S for gap in mean_gaps(free)) > 10
    assert all(gap <= 1.02 * TPOT_S for gap in mean_gaps(kept))


@pytest.mark.parametrize("truth", [0.7, 1.5])
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_a_profile_that_is_wrong_is_corrected_by_what_steps_take(truth, noise):
    requests = crowd(3, rate=4.0, count=150)
    times, goal = serve(requests, (COST,), truth=truth, noise=noise)
    assert truth - 0.02 <= goal.stretch <= truth * (1 + noise) + 0.01
    assert sum(gap > TPOT_S for gap in mean_gaps(times[30:])) <= 2


def test_a_prompt_alone_is_not_cut():
    times, _ = serve([(0.0, 400, 2)], (COST,), tpot_s=0.010)
    assert times[0][0] == pytest.approx(COST.seconds(400, 0, 0, 0))
