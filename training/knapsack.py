"""The multiple-choice knapsack of Lyra: at most one item of each group, the greatest value that fits. Exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.arrays import Floats, Ints
from training.kernels import fill_knapsack

MAX_CELLS = 200_000_000


@dataclass(frozen=True)
class Packed:
    """`weights` taken from each group, and what they are worth together."""

    weights: Ints
    value: float


def best_choice(values: list[Floats], capacity: int) -> Packed:
    """values[group][i] is the worth of i + 1 units given to that group; a plain dynamic program over the capacity."""
    groups = len(values)
    lengths = np.array([len(items) for items in values], np.int64)
    capacity = min(capacity, int(lengths.sum()))
    assert (capacity + 1) * max(groups, 1) <= MAX_CELLS, "too large for the table"
    padded = np.zeros((groups, max(int(lengths.max(initial=0)), 1)))
    for group, items in enumerate(values):
        padded[group, : len(items)] = items
    best, before = np.zeros(capacity + 1), np.zeros(capacity + 1)
    choice = np.zeros((groups, capacity + 1), np.int64)
    fill_knapsack(padded, lengths, capacity, best, before, choice)
    weights, room = np.zeros(groups, np.int64), capacity
    for group in range(groups - 1, -1, -1):
        weights[group] = choice[group, room]
        room -= int(weights[group])
    return Packed(weights, float(best[capacity]))


def is_concave(values: Floats) -> bool:
    """Whether each unit is worth no more than the one before: then taking the best next unit is optimal too."""
    steps = np.diff(values, prepend=0.0)
    return bool((np.diff(steps) <= 1e-9 * max(float(np.abs(values).max(initial=0.0)), 1.0)).all())
