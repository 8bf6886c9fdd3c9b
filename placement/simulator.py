"""Serves a workload with a plan on simulated time, with the decisions of dispatch.py.

One-pass models only: plans with generating models go through generation.py. What came of it is an Outcome.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.clocks import NOBODY, Clocks, Floats, Ints, Tables, finish_time, later, occupy
from placement.compiled import compiled, entry_point
from placement.dispatch import EXPIRED, NO_REPLICA, REFUSED, SERVED, State, launch, new_state, offer, shortest_queue
from placement.rules import Rule
from placement.workload import Workload

QUEUE_CAPACITY = 4096
OVERTAKE_SHARE = 0.005
"""At most this share of the admitted requests is dropped later, in favour of cheaper newcomers."""


class Records(NamedTuple):
    """What each request did, [n]; NaN and NOBODY where it did not run."""

    status: NDArray[np.int8]
    replica: Ints
    start: Floats  # when its group began with its batch (with waking up, where that was needed)
    batch: Ints  # which batch it ran in; on one group, numbers ascend in time
    size: Ints  # index of the batch's size


def new_records(count: int) -> Records:
    nobody = (np.full(count, NOBODY, np.int64) for _ in range(2))
    return Records(
        np.full(count, REFUSED, np.int8),
        next(nobody),
        np.full(count, np.nan),
        next(nobody),
        np.zeros(count, np.int64),
    )


def count_served(tables: Tables, stages: int, workload: Workload, rule: Rule, max_batch: int) -> Ints:
    """Requests served in time, per model: the quick way, for search."""
    served = np.zeros(len(tables.slack), np.int64)
    _serve(tables, stages, workload, rule, max_batch, served, None)
    return served


def record_served(tables: Tables, stages: int, workload: Workload, rule: Rule, max_batch: int) -> Records:
    """What each request did."""
    records = new_records(len(workload))
    _serve(tables, stages, workload, rule, max_batch, np.zeros(len(tables.slack), np.int64), records)
    return records


def _serve(
    tables: Tables,
    stages: int,
    workload: Workload,
    rule: Rule,
    max_batch: int,
    served: Ints,
    records: Records | None,
) -> None:
    capacity = QUEUE_CAPACITY if rule == "deadline" else 1
    state = new_state(len(tables.stages), stages, len(tables.slack), capacity)
    if rule == "shortest-queue":
        serve_shortest_queue(workload.arrival, workload.model, tables, state.clocks, served, records)
    else:
        sizes = max(int(np.searchsorted(tables.batch_size, max_batch, side="right")), 1)
        serve_deadline(workload.arrival, workload.model, tables, state, sizes, OVERTAKE_SHARE, served, records)


@entry_point
def serve_shortest_queue(
    arrival: Floats,
    model: NDArray[np.int32],
    tables: Tables,
    clocks: Clocks,
    served: Ints,
    records: Records | None,
) -> None:
    """AlpaServe's rule: bound at arrival, first come first served, batch 1, refused when it would be late."""
    batch = 0
    for request in range(arrival.size):
        m = model[request]
        now = arrival[request]
        replica = shortest_queue(tables, clocks, m)
        if replica == NOBODY:
            if records is not None:
                records.status[request] = NO_REPLICA
            continue
        if finish_time(tables, clocks, replica, m, 0, now) > now + tables.slack[m]:
            continue
        if records is not None:
            records.status[request] = SERVED
            records.replica[request] = replica
            loaded = later(now, tables.replica_ready[replica])
            records.start[request] = later(loaded, clocks.free[tables.replica_group[replica], 0])
            records.batch[request] = batch
        batch += 1
        occupy(tables, clocks, replica, m, 0, now)
        served[m] += 1


@compiled
def _record(state: State, began: int, batches: int, records: Records) -> int:
    """Note the rows that began, which stand behind the queue's end; returns how many batches they make."""
    queue = state.queue
    fresh = 0
    newest = NOBODY
    for row in range(queue.length[0], queue.length[0] + began):
        request = queue.request[row]
        if queue.batch[row] > newest:
            newest = queue.batch[row]
            records.batch[request] = batches + fresh
            fresh += 1
        else:  # a member of a batch whose head stands before it
            head = row - 1
            while queue.batch[head] != queue.batch[row]:
                head -= 1
            records.batch[request] = records.batch[queue.request[head]]
        records.replica[request] = queue.replica[row]
        records.start[request] = queue.start[row]
        records.size[request] = queue.size[row]
    return fresh


@compiled
def serve_span(
    arrival: Floats,
    model: NDArray[np.int32],
    first: int,
    last: int,
    until: float,
    tables: Tables,
    state: State,
    sizes: int,
    overtake: float,
    batches: int,
    served: Ints,
    records: Records | None,
) -> int:
    """The deadline rule for the requests `first` .. `last` - 1, then begin what begins by `until`. `batches` had
    begun before; returns how many have now (only counted with records)."""
    queue = state.queue
    for request in range(first, last + 1):
        now = arrival[request] if request < last else until
        if queue.length[0] > 0:
            began = launch(tables, state, now)
            if records is not None:
                batches += _record(state, began, batches, records)
        if request == last:
            break
        m = model[request]
        verdict = offer(tables, state, request, m, now, sizes, overtake)
        if records is not None:
            records.status[request] = verdict.status
        if verdict.status == SERVED:
            served[m] += 1
            if verdict.dropped != NOBODY:
                served[model[verdict.dropped]] -= 1
                if records is not None:
                    records.status[verdict.dropped] = EXPIRED
    return batches


@entry_point
def serve_deadline(
    arrival: Floats,
    model: NDArray[np.int32],
    tables: Tables,
    state: State,
    sizes: int,
    overtake: float,
    served: Ints,
    records: Records | None,
) -> None:
    """Our rule: late binding, earliest deadline first, honest refusal at arrival, batches where they help."""
    serve_span(arrival, model, 0, arrival.size, np.inf, tables, state, sizes, overtake, 0, served, records)
