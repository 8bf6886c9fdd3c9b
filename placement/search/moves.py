"""Small changes to a candidate: replicas added, removed, swapped; groups reshaped, split, merged. Each returns a valid
candidate, or None where it does not apply."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from placement.clocks import Floats
from placement.search.candidate import Candidate, Space
from placement.search.fill import refill

Move = Callable[[Space, Candidate, Floats, np.random.Generator], Candidate | None]


def add_replica(space: Space, candidate: Candidate, missed: Floats, rng: np.random.Generator) -> Candidate | None:
    """One more replica, of a model that misses, where there is room."""
    model = _troubled(missed, rng)
    used = space.used(candidate)
    groups = [
        group
        for group in range(len(candidate.classes))
        if not candidate.holds[group, model] and space.has_room(candidate, group, model, used)
    ]
    return candidate.with_replica(int(rng.choice(groups)), model, True) if groups else None


def remove_replica(space: Space, candidate: Candidate, missed: Floats, rng: np.random.Generator) -> Candidate | None:
    """One replica less, of a model that has others."""
    spare = np.argwhere(candidate.holds & (candidate.holds.sum(axis=0) > 1))
    if not len(spare):
        return None
    group, model = spare[rng.integers(len(spare))]
    return candidate.with_replica(int(group), int(model), False)


def swap_replica(space: Space, candidate: Candidate, missed: Floats, rng: np.random.Generator) -> Candidate | None:
    """A model that misses takes the place of one that does not, on one group."""
    model = _troubled(missed, rng)
    groups = np.flatnonzero(~candidate.holds[:, model])
    if not len(groups):
        return None
    group = int(rng.choice(groups))
    return _make_room(space, candidate, group, model, missed, rng)


def move_replica(space: Space, candidate: Candidate, missed: Floats, rng: np.random.Generator) -> Candidate | None:
    """A replica goes to another group, and one from there comes back if room is needed."""
    held = np.argwhere(candidate.holds)
    if not len(held):
        return None
    source, model = (int(x) for x in held[rng.integers(len(held))])
    targets = np.flatnonzero(~candidate.holds[:, model])
    if not len(targets):
        return None
    target = int(rng.choice(targets))
    moved = _make_room(space, candidate.with_replica(source, model, False), target, model, missed, rng)
    return None if moved is None else refill(space, moved)


def reshape_group(space: Space, candidate: Candidate, missed: Floats, rng: np.random.Generator) -> Candidate | None:
    """Another shape on the same number of devices."""
    group = int(rng.integers(len(candidate.classes)))
    others = _same_kind(space, candidate.classes[group], int(space.sizes[candidate.classes[group]]))
    return _replace_groups(space, candidate, [group], [_pick(others, rng)], rng) if others else None


def split_group(space: Space, candidate: Candidate, missed: Floats, rng: np.random.Generator) -> Candidate | None:
    """Two groups of half the devices."""
    group = int(rng.integers(len(candidate.classes)))
    size = int(space.sizes[candidate.classes[group]])
    halves = _same_kind(space, candidate.classes[group], size // 2) if size % 2 == 0 else []
    if not halves:
        return None
    first = _pick(halves, rng)
    second = first if rng.random() < 0.5 else _pick(halves, rng)
    return _replace_groups(space, candidate, [group], [first, second], rng)


def merge_groups(space: Space, candidate: Candidate, missed: Floats, rng: np.random.Generator) -> Candidate | None:
    """One group of the devices of two."""
    if len(candidate.classes) < 2:
        return None
    one, two = (int(x) for x in rng.choice(len(candidate.classes), 2, replace=False))
    kinds = [space.catalogue.classes[candidate.classes[group]].kind for group in (one, two)]
    size = int(space.sizes[candidate.classes[one]] + space.sizes[candidate.classes[two]])
    whole = _same_kind(space, candidate.classes[one], size) if kinds[0] == kinds[1] else []
    return _replace_groups(space, candidate, [one, two], [_pick(whole, rng)], rng) if whole else None


def reshape_alike(space: Space, candidate: Candidate, missed: Floats, rng: np.random.Generator) -> Candidate | None:
    """Another shape on all groups of one class."""
    kind = candidate.classes[int(rng.integers(len(candidate.classes)))]
    groups = [group for group, other in enumerate(candidate.classes) if other == kind]
    others = [other for other in _same_kind(space, kind, int(space.sizes[kind])) if other != kind]
    return _replace_groups(space, candidate, groups, [_pick(others, rng)] * len(groups), rng) if others else None


MOVES: tuple[tuple[Move, float], ...] = (
    (swap_replica, 4.0),
    (move_replica, 2.0),
    (add_replica, 1.0),
    (remove_replica, 1.0),
    (reshape_group, 1.0),
    (reshape_alike, 0.5),
    (split_group, 1.0),
    (merge_groups, 1.0),
)


def _troubled(missed: Floats, rng: np.random.Generator) -> int:
    """A model, the likelier the more it misses."""
    weight = missed + missed.sum() / len(missed) * 0.2 + 1e-9
    return int(rng.choice(len(missed), p=weight / weight.sum()))


def _make_room(
    space: Space, candidate: Candidate, group: int, model: int, missed: Floats, rng: np.random.Generator
) -> Candidate | None:
    """The model on the group, others taken off as needed: those with other replicas, few misses, by chance."""
    holds = candidate.holds.copy()
    kind = candidate.classes[group]
    if not space.fits_alone[kind, model]:
        return None
    used = space.need[kind, holds[group]].sum(axis=0) + space.need[kind, model]
    while (used > space.limit[kind]).any():
        spare = np.flatnonzero(holds[group] & (holds.sum(axis=0) > 1))
        if not len(spare):
            return None
        calm = 1.0 / (missed[spare] + missed.mean() + 1e-9)
        victim = int(rng.choice(spare, p=calm / calm.sum()))
        holds[group, victim] = False
        used = used - space.need[kind, victim]
    holds[group, model] = True
    return Candidate(candidate.classes, holds)


def _replace_groups(
    space: Space, candidate: Candidate, old: list[int], new: list[int], rng: np.random.Generator
) -> Candidate | None:
    """Other groups in place of some: they inherit the models that fit, then what room is left is filled."""
    keep = [group for group in range(len(candidate.classes)) if group not in old]
    classes = tuple(candidate.classes[group] for group in keep) + tuple(new)
    if space.pack(classes) is None:
        return None
    models = candidate.holds.shape[1]
    holds = np.zeros((len(classes), models), np.bool_)
    holds[: len(keep)] = candidate.holds[keep]
    for place, kind in enumerate(new):
        wanted = candidate.holds[old[place]] if len(old) == len(new) else candidate.holds[old].any(axis=0)
        group = len(keep) + place
        used = np.zeros(space.need.shape[2])
        # A model whose only home was here comes first; the rest in random order.
        homeless = ~holds.any(axis=0) & wanted
        order = np.concatenate(
            [rng.permutation(np.flatnonzero(homeless)), rng.permutation(np.flatnonzero(wanted & ~homeless))]
        )
        for model in order:
            if (used + space.need[kind, model] <= space.limit[kind]).all():
                holds[group, model] = True
                used = used + space.need[kind, model]
    filled = refill(space, Candidate(classes, holds))
    lost = np.any(candidate.holds, axis=0) & ~np.any(filled.holds, axis=0)
    return None if lost.any() else filled


def _same_kind(space: Space, kind: int, size: int) -> list[int]:
    """Classes of this many devices, of the same device kind."""
    classes = space.catalogue.classes
    return [
        other
        for other, entry in enumerate(classes)
        if entry.kind == classes[kind].kind and space.sizes[other] == size and space.fits_alone[other].any()
    ]


def _pick(options: list[int], rng: np.random.Generator) -> int:
    return options[int(rng.integers(len(options)))]
