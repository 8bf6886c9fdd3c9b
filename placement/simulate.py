"""The door to the simulator: a problem and a plan in, an Outcome out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.clocks import NOBODY, Clocks, Floats, Ints, Tables, later, new_clocks
from placement.compiled import entry_point
from placement.generation.serve import simulate_generation
from placement.outcome import Outcome
from placement.plan import Plan
from placement.problem import Problem
from placement.rules import Rule
from placement.simulator import Records, record_served
from placement.tables import Catalogue
from placement.workload import Workload

DEFAULT_MAX_BATCH = 16


def simulate(
    problem: Problem,
    plan: Plan,
    workload: Workload | None = None,
    rule: Rule = "deadline",
    max_batch: int = DEFAULT_MAX_BATCH,
) -> Outcome:
    """Serve the workload (the problem's own by default) with the plan."""
    workload = problem.workload if workload is None else workload
    catalogue = Catalogue(problem)
    if any(model.generates for model in problem.models):
        return simulate_generation(problem, plan, workload, rule, max_batch, catalogue)
    tables = catalogue.tables(plan)
    records = record_served(tables, catalogue.stages, workload, rule, max_batch)
    return outcome_of(problem, plan, workload, catalogue, tables, records)


def outcome_of(
    problem: Problem, plan: Plan, workload: Workload, catalogue: Catalogue, tables: Tables, records: Records
) -> Outcome:
    """Stage by stage from what was recorded: every batch run again, in order, on fresh clocks."""
    ran = np.flatnonzero(records.batch != NOBODY)
    group = np.full(len(workload), NOBODY, np.int64)
    group[ran] = tables.replica_group[records.replica[ran]]
    times = new_stage_times(len(workload), plan)
    replay(tables, workload, records, ran, new_clocks(len(plan.groups), catalogue.stages), times)
    return collect(problem, plan, workload, records, group, times)


class StageTimes(NamedTuple):
    """When each stage of each request began and ended, [n, stages], NaN where none; seconds of work,
    [groups]."""

    start: Floats
    end: Floats
    busy_s: Floats


def new_stage_times(requests: int, plan: Plan) -> StageTimes:
    stages = max((group.pp for group in plan.groups), default=1)
    start, end = (np.full((requests, stages), np.nan) for _ in range(2))
    return StageTimes(start, end, np.zeros(len(plan.groups)))


def replay(tables: Tables, workload: Workload, records: Records, ran: Ints, clocks: Clocks, times: StageTimes) -> None:
    """Run the batches of the requests `ran` again, on these clocks, and note their stage times."""
    group = tables.replica_group[records.replica[ran]]
    order = ran[np.lexsort((group, records.start[ran]))]
    _replay(tables, workload.model, records, order, clocks, times)


def collect(
    problem: Problem, plan: Plan, workload: Workload, records: Records, group: Ints, times: StageTimes
) -> Outcome:
    """The Outcome; batches are numbered by when they began, then by group."""
    ran = np.flatnonzero(records.batch != NOBODY)
    order = ran[np.lexsort((group[ran], records.start[ran]))]
    batch = np.full(len(workload), NOBODY, np.int64)
    batch[order] = np.cumsum(np.diff(records.batch[order], prepend=NOBODY) != 0) - 1
    finish = np.full(len(workload), np.nan)
    stages = np.array([entry.pp for entry in plan.groups], np.int64)
    finish[ran] = times.end[ran, stages[group[ran]] - 1] + problem.overhead
    busy_s = times.busy_s / stages
    return Outcome(
        problem, plan, workload, records.status, group, batch, finish, finish, times.start, times.end, busy_s
    )


@entry_point
def _replay(
    tables: Tables, model: NDArray[np.int32], records: Records, order: Ints, clocks: Clocks, times: StageTimes
) -> None:
    head = NOBODY
    for request in order:
        group = tables.replica_group[records.replica[request]]
        if head != NOBODY and records.batch[request] == records.batch[head]:
            for s in range(tables.stages[group]):
                times.start[request, s], times.end[request, s] = times.start[head, s], times.end[head, s]
            continue
        head = request
        m = model[head]
        kind, profile, size = tables.group_class[group], tables.profile[m], records.size[head]
        begin = x = records.start[head]
        wakes = tables.replica_parked[records.replica[head]] and clocks.awake[group] != m
        if wakes:
            clocks.awake[group] = m
        for s in range(tables.stages[group]):
            free = clocks.free[group, s]
            if wakes:
                free = later(begin, free) + tables.wake[kind, profile, s]
            times.start[head, s] = later(x, free)
            x = times.start[head, s] + tables.latency[kind, profile, size, s]
            times.end[head, s] = clocks.free[group, s] = x
            times.busy_s[group] += x - times.start[head, s]
