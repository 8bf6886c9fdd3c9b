"""Serving a workload with a candidate: whichever simulator its models need."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placement.clocks import NOBODY, Floats, Ints
from placement.generation.serve import simulate_generation
from placement.outcome import Outcome
from placement.rules import Rule
from placement.search.candidate import Candidate, Space
from placement.simulator import count_served, record_served
from placement.workload import Workload


class Load(NamedTuple):
    """Requests met per model, [models], and busy seconds per group, [groups]."""

    met: Ints
    busy_s: Floats


def count_met(space: Space, candidate: Candidate, workload: Workload, rule: Rule, max_batch: int) -> Ints:
    """Requests answered within their SLO, [models]."""
    if space.generates:
        return _met(_outcome(space, candidate, workload, rule, max_batch))
    return count_served(space.tables(candidate), space.catalogue.stages, workload, rule, max_batch)


def measure_load(space: Space, candidate: Candidate, workload: Workload, rule: Rule) -> Load:
    """The same, one request at a time, with how busy each group was."""
    groups = len(candidate.classes)
    if not candidate.holds.any():
        return Load(np.zeros(len(space.problem.models), np.int64), np.zeros(groups))
    if space.generates:
        outcome = _outcome(space, candidate, workload, rule, 1)
        busy = np.zeros(groups)
        busy[candidate.holds.any(axis=1)] = outcome.busy_s
        return Load(_met(outcome), busy)
    tables = space.tables(candidate)
    records = record_served(tables, space.catalogue.stages, workload, rule, 1)
    ran = records.replica != NOBODY
    group = tables.replica_group[records.replica[ran]]
    seconds = space.catalogue.device_seconds[tables.group_class[group], tables.profile[workload.model[ran]]]
    busy = np.bincount(group, weights=seconds, minlength=groups) / space.sizes[list(candidate.classes)]
    return Load(np.bincount(workload.model[ran], minlength=len(space.problem.models)), busy)


def _outcome(space: Space, candidate: Candidate, workload: Workload, rule: Rule, max_batch: int) -> Outcome:
    plan = space.plan(candidate)
    return simulate_generation(space.problem, plan, workload, rule, max_batch, space.catalogue)


def _met(outcome: Outcome) -> Ints:
    models = len(outcome.problem.models)
    met: Ints = np.bincount(outcome.workload.model[outcome.met], minlength=models)
    return met
