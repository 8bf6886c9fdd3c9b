"""AlpaServe's search (OSDI '23): greedy selection of replicas (Algorithm 1, the fast variant) inside an enumeration of
model buckets, group sizes and shapes (Algorithm 2). One shape for all groups of a bucket; nothing is ever removed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from placement.clocks import Bools
from placement.rules import Rule
from placement.search.candidate import Candidate, Space
from placement.search.layouts import fill_up, uniform_layout, useful_classes
from placement.search.measure import count_met, measure_load

BUCKET_RATIO = 2.0
"""A bucket ends where the next model's latency is this many times the bucket's first."""
MOST_BUCKETS = 3


def alpaserve(space: Space, rule: Rule) -> Candidate:
    """The best whole over buckets, device splits, group sizes and shapes."""
    best: tuple[int, Candidate] | None = None
    for buckets in _bucketings(space):
        candidate = _plan_buckets(space, buckets, rule)
        if candidate is not None:
            served = _served(space, candidate, rule)
            if best is None or served > best[0]:
                best = (served, candidate)
    assert best is not None
    return best[1]


def greedy(space: Space, classes: tuple[int, ...], rule: Rule, models: Bools | None = None) -> Candidate:
    """Algorithm 1, fast variant: simulate, take the model with the most unserved requests, put it on the least busy
    group that can hold it; stop when all are served or nothing fits."""
    count = len(space.problem.models)
    wanted = np.ones(count, np.bool_) if models is None else models
    candidate = Candidate(classes, np.zeros((len(classes), count), np.bool_))
    total = space.problem.workload.counts(count)
    while True:
        load = measure_load(space, candidate, space.problem.workload, rule)
        unserved = np.where(wanted, total - load.met, 0)
        for model in np.argsort(-unserved, kind="stable"):
            if unserved[model] <= 0:
                return candidate
            used = space.used(candidate)
            groups = [
                group
                for group in np.argsort(load.busy_s, kind="stable")
                if not candidate.holds[group, model] and space.has_room(candidate, int(group), int(model), used)
            ]
            if groups:
                candidate = candidate.with_replica(int(groups[0]), int(model), True)
                break
        else:
            return candidate


def replication(space: Space, rule: Rule) -> Candidate:
    """Selective replication: no parallelism beyond what a model needs to fit, greedy replicas."""
    classes: tuple[int, ...] = ()
    for kind in space.kinds:
        alone = [c for c in useful_classes(space, kind) if space.fits_alone[c].all()]
        if alone or useful_classes(space, kind):
            classes += uniform_layout(space, kind, (alone or useful_classes(space, kind))[0])
    return greedy(space, classes, rule)


def round_robin(space: Space) -> Candidate:
    """Pipelines of four stages (or the nearest shape that holds most models), models dealt in turn until memory is
    full."""
    classes: tuple[int, ...] = ()
    for kind in space.kinds:
        shapes = space.catalogue.classes
        useful = useful_classes(space, kind)
        if useful:
            nearest = min(
                useful,
                key=lambda c: (
                    -space.fits_alone[c].sum(),
                    shapes[c].shape.tp,
                    abs(shapes[c].shape.pp - 4),
                    c,
                ),
            )
            classes += uniform_layout(space, kind, nearest)
    holds = np.zeros((len(classes), len(space.problem.models)), np.bool_)
    candidate = Candidate(classes, holds)
    place, stuck = 0, 0
    turn = 0
    while stuck < holds.shape[1]:
        model = turn % holds.shape[1]
        turn += 1
        used = space.used(candidate)
        order = [(place + step) % len(classes) for step in range(len(classes))]
        group = next(
            (g for g in order if not candidate.holds[g, model] and space.has_room(candidate, g, model, used)),
            None,
        )
        if group is None:
            stuck += 1
            continue
        stuck = 0
        candidate = candidate.with_replica(group, model, True)
        place = group + 1
    return candidate


def _bucketings(space: Space) -> Iterator[list[Bools]]:
    """All models together; and, where latencies differ much, buckets of similar latency."""
    count = len(space.problem.models)
    yield [np.ones(count, np.bool_)]
    latency = np.nan_to_num(space.catalogue.device_seconds.min(axis=0)[space.catalogue.profile_of_model], posinf=0.0)
    order = np.argsort(latency, kind="stable")
    starts = [0]
    for position in range(1, count):
        if latency[order[position]] > BUCKET_RATIO * latency[order[starts[-1]]]:
            starts.append(position)
    if 1 < len(starts) <= MOST_BUCKETS:
        buckets = []
        for begin, end in zip(starts, [*starts[1:], count], strict=True):
            mask = np.zeros(count, np.bool_)
            mask[order[begin:end]] = True
            buckets.append(mask)
        yield buckets


def _plan_buckets(space: Space, buckets: list[Bools], rule: Rule) -> Candidate | None:
    """Devices split over the buckets by demand; in each the best shape and group size."""
    if len(buckets) == 1:
        return _best_uniform(space, buckets[0], rule, 1.0)
    total = float(space.demand.sum()) or 1.0
    classes: tuple[int, ...] = ()
    rows: list[Bools] = []
    for mask in buckets:
        part = _best_uniform(space, mask, rule, float(space.demand[mask].sum()) / total)
        if part is None or space.pack(classes + part.classes) is None:
            return None
        classes += part.classes
        rows.extend(part.holds)
    return Candidate(classes, np.array(rows)) if rows else None


def _best_uniform(space: Space, models: Bools, rule: Rule, share: float) -> Candidate | None:
    best: tuple[int, Candidate] | None = None
    for kind in space.kinds:
        for one in useful_classes(space, kind):
            if not (space.fits_alone[one] & models).any():
                continue
            layout = _part(space, kind, one, share)
            if not layout or space.pack(layout) is None:
                continue
            candidate = greedy(space, layout, rule, models)
            served = _served(space, candidate, rule)
            if best is None or served > best[0]:
                best = (served, candidate)
    return None if best is None else best[1]


def _part(space: Space, kind: str, one: int, share: float) -> tuple[int, ...]:
    """Groups of one class on a share of all devices; on all of them for the whole."""
    if share >= 1.0:
        rest: tuple[int, ...] = ()
        for other in space.kinds:
            if other != kind:
                rest = fill_up(space, other, rest)
        return uniform_layout(space, kind, one) + rest
    count = int(share * space.devices_of_kind[kind]) // int(space.sizes[one])
    return (one,) * count


def _served(space: Space, candidate: Candidate, rule: Rule) -> int:
    return int(count_met(space, candidate, space.problem.workload, rule, 1).sum())
