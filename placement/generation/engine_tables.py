"""The arrays that engines work on: what holds for a plan, and what changes from step to step."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from placement.clocks import NOBODY, Bools, Clocks, Floats, Ints
from placement.dispatch import REFUSED
from placement.errors import InputError
from placement.plan import Plan, takes_turns
from placement.problem import MAX_SLO_S
from placement.profile import StepCost
from placement.tables import Catalogue
from placement.workload import Workload

STEPS, PULLS, PREEMPTIONS = range(3)
COSTS = len(StepCost.__struct_fields__)


class Engines(NamedTuple):
    """What holds for a whole plan. E engines (by group, then by model), L lanes, S stages, G groups, M
    models. A line is where requests wait: one a model, or one an engine where they are bound at arrival."""

    cost: Floats  # [E, S, COSTS] profile.StepCost, in the order of step_cost.py
    stages: Ints  # [E] and as many lanes
    capacity: Ints  # [E] tokens the cache holds
    group: Ints  # [E]
    model: Ints  # [E]
    line: Ints  # [E]
    line_capacity: Ints  # [lines] the largest capacity of its engines
    first_lane: Ints  # [E + 1]
    lane_engine: Ints  # [L]
    first_of_group: Ints  # [G + 1] engines first_of_group[g] .. first_of_group[g + 1] - 1 share group g
    first_of_model: Ints  # [M + 1] into by_model
    by_model: Ints  # [E] engines sorted by model
    generates: Bools  # [M]
    slack: Floats  # [M] seconds from arrival to when the first token must leave the last stage
    finish_slack: Floats  # [M] and the last token
    tpot: Floats  # [M] seconds, finite
    wake: Floats  # [E] seconds to be awake, of those that take turns on their group; -1: always awake. Empty: all are


class Lanes(NamedTuple):
    """The sequences of an engine that step together, [L]: `decoding` ones first in `member`, then the `fresh`
    ones, whose prefill ends with the step in flight."""

    end: Floats  # when the last step leaves or left the last stage
    in_flight: Bools
    steps: Ints  # how many are done
    decoding: Ints
    fresh: Ints
    member: Ints  # [L, step tokens]
    prefilling: Ints  # the sequence in the middle of its prefill, or NOBODY
    cached: Ints  # tokens of the decoding sequences
    next_end: Ints  # the number of steps at which the next sequence has its last token
    due: Floats  # the next token of all is in time until due + steps * tpot
    slowest: Floats  # seconds of the last step on its slowest stage
    stage_begin: Floats  # [L, S] of the last step
    stage_end: Floats  # [L, S]


class Sequences(NamedTuple):
    """One row a request. Its cached tokens are `held` until it decodes, then one more each step since
    `joined`."""

    prompt: Ints
    output: Ints  # what really comes; read only to tell that the last token is made
    deadline: Floats  # when the first token must have left the last stage
    latest: Floats  # when even an idle engine must have begun the prefill
    expected: Floats  # when the first token was expected at arrival
    made: Ints  # tokens made when it last joined or left a lane
    done: Ints  # tokens prefilled
    held: Ints  # cache taken when pulled
    joined: Ints  # the lane's steps when it began to decode
    ends: Ints  # the lane's steps when it has its last token
    pulled: Ints  # the how-maniest pull it was: larger is younger
    ahead: Ints  # its neighbours in line
    behind: Ints


class Lines(NamedTuple):
    """Requests that wait, in the order in which they are pulled, [lines]."""

    head: Ints
    tail: Ints
    waiting: Ints
    tokens: Ints  # to prefill


class Learned(NamedTuple):
    """What earlier requests have shown, [M]."""

    ended: Floats  # how many
    ended_tokens: Floats  # that they produced
    arrived: Floats  # how many
    arrived_tokens: Floats  # of their prompts
    stretch: Floats  # how much longer than reckoned the wait for a first token is


class Answers(NamedTuple):
    """What each request did, [n]; times without overhead; NaN and NOBODY where it did not."""

    status: NDArray[np.int8]
    group: Ints
    batch: Ints  # of a one-pass request
    begun: Floats  # when its group began with it (with waking up, where that was needed), one-pass only
    first: Floats
    finish: Floats
    stage_start: Floats  # [n, S]
    stage_end: Floats


class World(NamedTuple):
    """Everything an engine's step reads or changes."""

    engines: Engines
    lanes: Lanes
    sequences: Sequences
    lines: Lines
    answers: Answers
    clocks: Clocks
    used: Ints  # [E] tokens in the cache or promised to a prefill
    running: Ints  # [E] sequences pulled and not ended
    learned: Learned
    busy: Floats  # [G] stage-seconds of work
    totals: Ints  # [3] steps, pulls, preemptions
    step_tokens: int  # the most tokens of a step, decoded and prefilled


def engines_of(plan: Plan, catalogue: Catalogue, early: bool) -> Engines:
    """The arrays of the plan's engines. `early`: bound at arrival, so each engine has its own line and no
    goals."""
    models = catalogue.problem.models
    found = [
        (index, catalogue.model_index[name])
        for index, group in enumerate(plan.groups)
        for name in sorted(group.models + group.parked, key=catalogue.model_index.__getitem__)
        if models[catalogue.model_index[name]].generates
    ]
    group, model = np.array(found, np.int64).reshape(-1, 2).T
    cost = np.zeros((len(found), catalogue.stages, COSTS))
    capacity = np.zeros(len(found), np.int64)
    for e, (g, m) in enumerate(found):
        entry = catalogue.entries[catalogue.class_of(plan.groups[g])][catalogue.profile_of_model[m]]
        if entry is None or entry.generation is None:
            raise InputError(f"groups[{g}]: {models[m].name!r} has no generation costs for {plan.groups[g].shape}")
        for s, step in enumerate(entry.generation.stages):
            cost[e, s] = msgspec.structs.astuple(step)
        kv_bytes = plan.groups[g].kv_bytes.get(models[m].name, 0)
        capacity[e] = min(int(kv_bytes / size) for size in entry.generation.kv_bytes_per_token)
    stages = np.array([plan.groups[g].pp for g, _ in found], np.int64)
    line = np.arange(len(found)) if early else model.copy()
    line_capacity = np.zeros(max(len(found), len(models)), np.int64)
    np.maximum.at(line_capacity, line, capacity)
    overhead = catalogue.problem.overhead
    return Engines(
        cost=cost,
        stages=stages,
        capacity=capacity,
        group=group.copy(),
        model=model.copy(),
        line=line,
        line_capacity=line_capacity,
        first_lane=_starts(stages),
        lane_engine=np.repeat(np.arange(len(found)), stages),
        first_of_group=_starts(np.bincount(group, minlength=len(plan.groups))),
        first_of_model=_starts(np.bincount(model, minlength=len(models))),
        by_model=np.argsort(model, kind="stable"),
        generates=np.array([entry.generates for entry in models], np.bool_),
        slack=np.array([np.inf if early else entry.slo.first_token - overhead for entry in models]),
        finish_slack=np.array([np.inf if early else entry.slo.end_to_end - overhead for entry in models]),
        tpot=np.array([MAX_SLO_S if early else min(entry.slo.tpot, MAX_SLO_S) for entry in models]),
        wake=_wake(plan, catalogue, found),
    )


def first_awake(plan: Plan, catalogue: Catalogue) -> Ints:
    """[G] who is awake before anybody has come, of those that take turns: the resident, or NOBODY."""
    turns = [takes_turns(group, catalogue.problem) for group in plan.groups]
    awake = [
        next((catalogue.model_index[name] for name in group.models if name in those), NOBODY)
        for group, those in zip(plan.groups, turns, strict=True)
    ]
    return np.array(awake, np.int64)


def _wake(plan: Plan, catalogue: Catalogue, found: list[tuple[int, int]]) -> Floats:
    if not any(group.parked for group in plan.groups):
        return np.zeros(0)
    names = [model.name for model in catalogue.problem.models]
    turns = [takes_turns(group, catalogue.problem) for group in plan.groups]
    return np.array(
        [catalogue.wake_s(plan.groups[g], names[m]) if names[m] in turns[g] else -1.0 for g, m in found], np.float64
    )


def new_world(engines: Engines, clocks: Clocks, workload: Workload, step_tokens: int) -> World:
    """Idle engines, and requests that have not come."""
    assert workload.prompt_tokens is not None
    assert workload.output_tokens is not None
    count, lanes, lines = len(workload), len(engines.lane_engine), len(engines.line_capacity)
    models, stages = len(engines.tpot), clocks.free.shape[1]

    def ints(size: int, value: int = 0) -> Ints:
        return np.full(size, value, np.int64)

    def never(*shape: int) -> Floats:
        return np.full(shape, np.nan)

    return World(
        engines=engines,
        lanes=Lanes(
            end=np.zeros(lanes),
            in_flight=np.zeros(lanes, np.bool_),
            steps=ints(lanes),
            decoding=ints(lanes),
            fresh=ints(lanes),
            member=np.zeros((lanes, step_tokens), np.int64),
            prefilling=ints(lanes, NOBODY),
            cached=ints(lanes),
            next_end=ints(lanes, -1),
            due=np.full(lanes, np.inf),
            slowest=np.zeros(lanes),
            stage_begin=np.zeros((lanes, stages)),
            stage_end=np.zeros((lanes, stages)),
        ),
        sequences=Sequences(
            np.maximum(workload.prompt_tokens, 1).astype(np.int64),
            np.maximum(workload.output_tokens, 1).astype(np.int64),
            np.full(count, np.inf),
            np.full(count, np.inf),
            np.zeros(count),
            *(ints(count) for _ in range(8)),
        ),
        lines=Lines(ints(lines, NOBODY), ints(lines, NOBODY), ints(lines), ints(lines)),
        answers=Answers(
            status=np.full(count, REFUSED, np.int8),
            group=ints(count, NOBODY),
            batch=ints(count, NOBODY),
            begun=never(count),
            first=never(count),
            finish=never(count),
            stage_start=never(count, stages),
            stage_end=never(count, stages),
        ),
        clocks=clocks,
        used=ints(len(engines.capacity)),
        running=ints(len(engines.capacity)),
        learned=Learned(np.zeros(models), np.zeros(models), np.zeros(models), np.zeros(models), np.ones(models)),
        busy=np.zeros(len(clocks.awake)),
        totals=ints(3),
        step_tokens=step_tokens,
    )


def _starts(counts: Ints) -> Ints:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
