"""Shares of time X[i, j] that job i runs on kind j, as linear programs (Gavel, OSDI '20). HiGHS through scipy.

Every program keeps 0 <= X, each job's shares at most 1, and the devices of each kind. Jobs that look the same to the
program get the same shares, so that it is solved over their classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import linprog

from training.arrays import Floats, Ints

sparse: Any = scipy.sparse  # its stubs are at odds with lists of blocks
TINY = 1e-12
GUESS = 2.0
CLOSE = 1e-3
"""How far from the best rho finish-time fairness may end, relative."""
LARGE = 600
"""Variables from which the interior-point method is the quicker one, by far."""


@dataclass(frozen=True)
class Shares:
    """X [n, kinds], and the value of the objective."""

    x: Floats
    value: float


def most_total(worth: Floats, gpus: Ints, capacity: Ints) -> Shares:
    """Maximise sum_ij worth_ij X_ij."""
    groups = _Classes(worth, gpus)
    limits, bounds = _limits(groups, capacity)
    cost = -(groups.rows * groups.count[:, None]).ravel()
    found = _solve(cost, limits, bounds, (0, 1))
    return Shares(groups.spread(found.reshape(groups.rows.shape)), float(-(cost @ found)))


def most_for_least(
    worth: Floats, gpus: Ints, capacity: Ints, spare: Floats | None = None, interior: bool = False
) -> Shares:
    """Maximise the least sum_j worth_ij X_ij over the jobs; then, at that, sum_ij spare_ij X_ij (worth by default)."""
    groups = _Classes(worth, gpus, extra=spare)
    classes, kinds = groups.rows.shape
    limits, bounds = _limits(groups, capacity)
    # worth_i . X_i >= t, written as t - worth_i . X_i <= 0
    least = sparse.hstack([_per_class(-groups.rows), np.ones((classes, 1))])
    system = sparse.vstack([sparse.hstack([limits, sparse.csr_array((limits.shape[0], 1))]), least]).tocsr()
    right = np.concatenate((bounds, np.zeros(classes)))
    left_over = groups.extra * groups.count[:, None]
    # What is left over is worth a little, so that no device idles for the sake of the least.
    little = 1e-6 * max(float(groups.rows.max(initial=0.0)), TINY) / max(float(left_over.sum()), TINY)
    cost = np.append(-left_over.ravel() * little, -1.0)
    limits_of = [(0.0, 1.0)] * (classes * kinds) + [(0.0, None)]
    found = _solve(cost, system, right, limits_of, interior)
    return Shares(groups.spread(found[:-1].reshape(classes, kinds)), float(found[-1]))


def soonest_fair(
    throughput: Floats, gpus: Ints, capacity: Ints, elapsed: Floats, work: Floats, alone: Floats, steps: int = 40
) -> Shares:
    """Minimise the greatest rho_i = (elapsed_i + work_i / throughput_i(X)) / alone_i.

    For a given rho each job needs a throughput of work / (rho alone - elapsed); the program that gives everybody as
    many times its need as it can says whether rho holds (1 or more), and how far from it the next guess should be.
    """
    low = float((elapsed / alone).max())
    equal = equal_share(gpus, capacity)
    best = (throughput * equal).sum(axis=1)
    high = float(((elapsed + work / np.maximum(best, TINY)) / alone).max())
    spare = throughput / work[:, None]

    def tried(rho: float) -> Shares:
        needs = _needs(rho, elapsed, work, alone)
        return most_for_least(throughput / needs[:, None], gpus, capacity, spare, True)

    # Equal shares reach `high`; how many times the needs is not worth a program, twice is a guess.
    found = Shares(equal, 1.0)
    at_low, at_high = 0.0, GUESS
    for _ in range(steps):
        if high - low <= CLOSE * high or at_high <= 1 + CLOSE:
            break
        # For given shares the multiple is linear in rho, so a straight line nearly hits; a little above 1 is wanted.
        part = (1 + CLOSE / 2 - at_low) / (at_high - at_low)
        guess = low + (high - low) * min(max(part, 0.02), 0.98)
        shares = tried(guess)
        if shares.value >= 1:
            high, at_high, found = guess, shares.value, shares
        else:
            if at_high == GUESS:  # nothing but a guess: on along the line from the foot
                at_high = shares.value * (high - low) / (guess - low)
            low, at_low = guess, shares.value
    reached = float(((elapsed + work / np.maximum((throughput * found.x).sum(axis=1), TINY)) / alone).max())
    return Shares(found.x, reached)


def water_filled(worth: Floats, gpus: Ints, capacity: Ints, rounds: int = 20) -> Shares:
    """Max-min fair to the end: when the least cannot rise, it is held and the next least rises."""
    held = np.full(len(worth), np.nan)
    found = most_for_least(worth, gpus, capacity)
    first = found.value
    for _ in range(rounds):
        got = (worth * found.x).sum(axis=1)
        level = float(got[np.isnan(held)].min(initial=np.inf))
        if np.isinf(level):
            break
        stuck = np.isnan(held) & (got <= level * (1 + 1e-6) + TINY)
        held[stuck] = level
        if not np.isnan(held).any():
            break
        found = _above(worth, gpus, capacity, held)
    return Shares(found.x, first)


def _above(worth: Floats, gpus: Ints, capacity: Ints, held: Floats) -> Shares:
    """Maximise the least of the jobs that are not held, with those that are at their level."""
    jobs, kinds = worth.shape
    free = np.isnan(held)
    groups = _Classes(worth, gpus, apart=True)
    limits, bounds = _limits(groups, capacity)
    least = sparse.hstack([_per_class(-worth), free.astype(np.float64)[:, None]])
    system = sparse.vstack([sparse.hstack([limits, sparse.csr_array((limits.shape[0], 1))]), least]).tocsr()
    right = np.concatenate((bounds, np.where(free, 0.0, -held * (1 - 1e-9))))
    cost = np.zeros(jobs * kinds + 1)
    cost[-1] = -1
    found = _solve(cost, system, right, (0, None))
    return Shares(found[:-1].reshape(jobs, kinds), float(found[-1]))


def equal_share(gpus: Ints, capacity: Ints) -> Floats:
    """What each job would have if every kind were shared out equally, [n, kinds]"""
    each = capacity[None, :] / (max(len(gpus), 1) * gpus[:, None])
    shares: Floats = each / np.maximum(each.sum(axis=1, keepdims=True), 1.0)
    return shares


def _needs(rho: float, elapsed: Floats, work: Floats, alone: Floats) -> Floats:
    return work / np.maximum(rho * alone - elapsed, TINY)


def _solve(cost: Floats, rows: Any, right: Floats, bounds: object, interior: bool = False) -> Floats:
    """The variables that minimise the cost."""
    method = "highs-ipm" if interior or len(cost) > LARGE else "highs-ds"
    solve: Any = linprog  # its stubs know nothing of sparse rows
    found = solve(cost, A_ub=rows, b_ub=right, bounds=bounds, method=method)
    assert found.status == 0, found.message
    return np.asarray(found.x, np.float64)


class _Classes:
    """Jobs with the same row and the same GPUs."""

    def __init__(self, rows: Floats, gpus: Ints, apart: bool = False, extra: Floats | None = None) -> None:
        extra = rows if extra is None else extra
        if apart or not len(rows):
            self.rows, self.gpus, self.count, self.extra = rows, gpus, np.ones(len(rows)), extra
            self._of = np.arange(len(rows))
            return
        keyed = np.column_stack((rows, extra, gpus))
        kept: Floats
        kept, of, count = np.unique(keyed, axis=0, return_inverse=True, return_counts=True)
        kinds = rows.shape[1]
        self.rows, self.extra, self.gpus = kept[:, :kinds], kept[:, kinds:-1], kept[:, -1].astype(np.int64)
        self.count = count.astype(np.float64)
        self._of = of.ravel()

    def spread(self, x: Floats) -> Floats:
        return np.clip(x, 0.0, 1.0)[self._of]


def _limits(groups: _Classes, capacity: Ints) -> tuple[Any, Floats]:
    """Each job's shares at most 1, each kind's devices at most those there are."""
    classes, kinds = groups.rows.shape
    time = _per_class(np.ones((classes, kinds)))
    weight = (groups.gpus * groups.count)[:, None] * np.ones((1, kinds))
    columns = np.arange(classes * kinds)
    devices = sparse.csr_array((weight.ravel(), (columns % kinds, columns)), shape=(kinds, classes * kinds))
    return sparse.vstack([time, devices]).tocsr(), np.concatenate((np.ones(classes), capacity.astype(np.float64)))


def _per_class(values: Floats) -> Any:
    """A row a class, with its values at its own variables."""
    classes, kinds = values.shape
    columns = np.arange(classes * kinds)
    return sparse.csr_array((values.ravel(), (columns // kinds, columns)), shape=(classes, classes * kinds))
