"""Which models on given groups, without simulation: replicas spread by demand until memory is full."""

from __future__ import annotations

import numpy as np

from placement.search.candidate import Candidate, Space


def spread_fill(space: Space, classes: tuple[int, ...]) -> Candidate:
    """Give the next replica to the model with the fewest devices for its demand, on the group with room that holds
    the least demand; until nothing fits."""
    models = len(space.problem.models)
    candidate = Candidate(classes, np.zeros((len(classes), models), np.bool_))
    return refill(space, candidate)


def refill(space: Space, candidate: Candidate) -> Candidate:
    """Fill what room a candidate has left, first with models that have no replica."""
    kinds = np.array(candidate.classes, np.int64)
    holds = candidate.holds.copy()
    used = space.used(candidate)
    need, limit = space.need[kinds], space.limit[kinds]
    demand = np.maximum(space.demand, 1e-9)
    sizes = space.sizes[kinds].astype(np.float64)
    cover = (holds * sizes[:, None]).sum(axis=0)
    # A burst of a small model needs devices too: demand counts by its root.
    weight = np.sqrt(demand)
    load = (holds * demand).sum(axis=1) / sizes
    open_models = np.ones(holds.shape[1], np.bool_)
    while open_models.any():
        model = int(np.argmin(np.where(open_models, cover / weight, np.inf)))
        room = ~holds[:, model] & (used + need[:, model] <= limit[:, None]).all(axis=1)
        if not room.any():
            open_models[model] = False
            continue
        group = int(np.argmin(np.where(room, load, np.inf)))
        holds[group, model] = True
        used[group] += need[group, model]
        load[group] += demand[model] / sizes[group]
        cover[model] += sizes[group]
    return Candidate(candidate.classes, holds)
