"""How soon jobs end, learned from those that have: the Gittins index by width and by how long a job has run.

Time is cut into cells. Of the jobs of a width (to the next power of two) that ran into a cell, ended or not, some ended
in it (Kaplan and Meier's estimate); a width with few jobs leans on all widths, and all on a chance that is the same in
every cell, as if running times followed a power law. Compiled; the tables are small.
"""

from __future__ import annotations

import math

import numpy as np

from placement.compiled import entry_point
from training.arrays import Floats, Ints

RATIO = 1.5
EDGES: Floats = 120.0 * (RATIO ** np.arange(36, dtype=np.float64) - 1)
"""Seconds of running at which cells begin, [cells + 1]: 0, 60, 150, 285 and on to five years."""
PRIOR = 4.0
"""Jobs that what is believed beforehand counts for, in each cell."""


def index_by_width(run_s: Floats, width: Ints, ends: int) -> Floats:
    """The chance to end for a second of one device, at best, of a job of 2^w GPUs in each cell, [w, cells]; learned
    from jobs [n] of which the first `ends` have ended."""
    widths = 1 + int(width.max(initial=0))
    came, ended = np.zeros((widths, len(EDGES) - 1)), np.zeros((widths, len(EDGES) - 1))
    _count(run_s, width, ends, EDGES, came, ended)
    everywhere = (ended.sum(axis=0) + PRIOR * (1 - 1 / RATIO)) / (came.sum(axis=0) + PRIOR)
    chance = (ended + PRIOR * everywhere) / (came + PRIOR)
    index = np.empty_like(chance)
    _indices(chance, EDGES, index)
    per_device: Floats = index / np.exp2(np.arange(widths))[:, None]
    return per_device


def width_of(gpus: Ints) -> Ints:
    """The power of two that is at least so many GPUs, [n]"""
    return np.ceil(np.log2(gpus)).astype(np.int64)


def cell_of(run_s: Floats) -> Ints:
    return np.minimum(np.searchsorted(EDGES, run_s, side="right") - 1, len(EDGES) - 2)


def until_next_cell(run_s: Floats) -> float:
    """Seconds until the first of these running jobs leaves its cell."""
    edges = np.append(EDGES[1:-1], math.inf)
    return float((edges[cell_of(run_s)] - run_s).min(initial=math.inf))


@entry_point
def _count(run_s: Floats, width: Ints, ends: int, edges: Floats, came: Floats, ended: Floats) -> None:
    """Count who came into each cell and ended in it or passed it; who is still in a cell says nothing of it."""
    for job in range(run_s.size):
        cell = np.searchsorted(edges[1:-1], run_s[job], side="right")
        if job < ends:
            ended[width[job], cell] += 1
            came[width[job], cell] += 1
        elif cell:
            came[width[job], cell - 1] += 1
    for cell in range(came.shape[1] - 2, -1, -1):
        for row in range(came.shape[0]):
            came[row, cell] += came[row, cell + 1]


@entry_point
def _indices(chance: Floats, edges: Floats, index: Floats) -> None:
    """Of each cell, the most that P(ends by e) / E[time until it ends or e] reaches at the ends e of cells."""
    for width in range(chance.shape[0]):
        for first in range(chance.shape[1]):
            still, time_s, best = 1.0, 0.0, 0.0
            for cell in range(first, chance.shape[1]):
                ends = still * chance[width, cell]
                time_s += (still - ends / 2) * (edges[cell + 1] - edges[cell])
                still -= ends
                best = max(best, (1 - still) / time_s)
            index[width, first] = best
