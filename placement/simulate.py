"""The door to the simulator: a problem and a plan in, an Outcome out."""

from __future__ import annotations

import numpy as np

from placement.dispatch import NOBODY, Floats, Ints, Tables
from placement.outcome import Outcome
from placement.plan import Plan
from placement.problem import Problem
from placement.simulator import Records, Rule, record_served
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
    tables = catalogue.tables(plan)
    records = record_served(tables, catalogue.stages, workload, rule, max_batch)
    return outcome_of(problem, plan, workload, catalogue, tables, records)


def outcome_of(
    problem: Problem, plan: Plan, workload: Workload, catalogue: Catalogue, tables: Tables, records: Records
) -> Outcome:
    """Stage by stage from what was recorded: every batch run again, in order, on fresh clocks."""
    stages = max((group.pp for group in plan.groups), default=1)
    group = np.where(records.replica == NOBODY, NOBODY, tables.replica_group[records.replica])
    stage_start = np.full((len(workload), stages), np.nan)
    stage_end = np.full((len(workload), stages), np.nan)
    busy = np.zeros(len(plan.groups))
    ran = np.flatnonzero(records.batch != NOBODY)
    order = ran[np.lexsort((ran, records.batch[ran]))]
    heads = order[np.flatnonzero(np.diff(records.batch[order], prepend=-1))]
    _replay(tables, workload.model, records, heads, stage_start, stage_end, busy)
    head_of_batch = np.zeros(int(records.batch.max(initial=0)) + 1, np.int64)
    head_of_batch[records.batch[heads]] = heads
    stage_start[ran] = stage_start[head_of_batch[records.batch[ran]]]
    stage_end[ran] = stage_end[head_of_batch[records.batch[ran]]]
    finish = np.full(len(workload), np.nan)
    last = np.array([entry.pp - 1 for entry in plan.groups], np.int64)
    finish[ran] = stage_end[ran, last[group[ran]]] + problem.overhead
    for index, entry in enumerate(plan.groups):
        busy[index] /= entry.pp
    return Outcome(
        problem, plan, workload, records.status, group, records.batch, finish, finish, stage_start, stage_end, busy
    )


def _replay(
    tables: Tables, model: Ints, records: Records, heads: Ints, start: Floats, end: Floats, busy: Floats
) -> None:
    free = np.zeros((len(tables.stages), tables.latency.shape[3]))
    awake = np.full(len(tables.stages), NOBODY)
    for head in heads:
        replica, m = records.replica[head], model[head]
        group = tables.replica_group[replica]
        kind, profile, size = tables.group_class[group], tables.profile[m], records.size[head]
        x = records.start[head]
        wakes = tables.replica_parked[replica] and awake[group] != m
        if wakes:
            awake[group] = m
        for s in range(tables.stages[group]):
            begin = max(x, free[group, s])
            if wakes:
                begin = max(x, max(records.start[head], free[group, s]) + tables.wake[kind, profile, s])
            x = begin + tables.latency[kind, profile, size, s]
            start[head, s], end[head, s] = begin, x
            busy[group] += x - begin
            free[group, s] = x
