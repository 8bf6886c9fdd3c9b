"""From measured steps to profile.StepCost: the costs of 0 or more that are nearest to what was measured, and how far
from steps that were not looked at. Only numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from placement.profile import StepCost

GOAL_MEAN, GOAL_P95 = 0.08, 0.15
"""What the error on steps not fitted should be below, as a share of the time."""
LEAST_S = 1e-9
_ROUNDS = 30
_THRESHOLDS = 12

Floats = NDArray[np.float64]
Load = tuple[int, int, int, int]
"""P, S, C, K of StepCost."""


class FitError(msgspec.Struct, frozen=True):
    """Of steps that were not fitted, as shares of what they took."""

    mean: float
    p95: float
    steps: int

    @property
    def is_within_goal(self) -> bool:
        return self.mean <= GOAL_MEAN and self.p95 <= GOAL_P95


def fit_step_cost(loads: Sequence[Load], seconds: Sequence[float], expert_share: float = 0.0) -> StepCost:
    """The least sum of relative errors (not squared: one disturbed step must not bend the rest). `expert_share`: of a
    model with experts, those that one token touches.

    Which steps wait for the weights and which for computing is not known beforehand. For some first guesses (all steps
    up to some number of tokens wait for weights) and until it no longer changes: 1. given who waits for what, all is
    linear, and non-negative least squares, reweighted, finds the costs; 2. they say who waits for what.
    """
    table, times = np.array(loads, np.float64), np.array(seconds, np.float64)
    assert len(table) == len(times) > 0
    assert (times > 0).all()
    tokens = table[:, 0] + table[:, 1]
    table = np.column_stack([table, 1.0 - (1.0 - expert_share) ** tokens])
    guesses = [-1.0, *np.unique(np.quantile(tokens, np.linspace(0, 1, _THRESHOLDS))).tolist()]
    found = [_settle(table, times, tokens <= guess) for guess in guesses]
    best = min(found, key=lambda costs: float(np.abs(_predict(costs, table) / times - 1).sum()))
    fixed, weights, prefill, sequence, context, cached, experts = best.tolist()
    if fixed + max(weights + experts, prefill) <= 0:
        fixed = LEAST_S
    return StepCost(
        fixed=fixed,
        weights=weights,
        prefill_token=prefill,
        prefill_context=context,
        sequence=sequence,
        cached_token=cached,
        experts=experts,
        expert_share=expert_share,
    )


def relative_errors(cost: StepCost, loads: Sequence[Load], seconds: Sequence[float]) -> Floats:
    """[steps] how far the costs are from measured steps, as a share of what these took."""
    return np.array([abs(cost.seconds(*load) / taken - 1) for load, taken in zip(loads, seconds, strict=True)])


def summarise(errors: Sequence[float]) -> FitError:
    return FitError(float(np.mean(errors)), float(np.quantile(errors, 0.95)), len(errors))


def _settle(table: Floats, times: Floats, waits: NDArray[np.bool_]) -> Floats:
    costs = _solve(table, times, waits)
    for _ in range(_ROUNDS):
        now = costs[1] >= table[:, 0] * costs[2] + table[:, 1] * costs[3]
        if (now == waits).all():
            break
        waits = now
        costs = _solve(table, times, waits)
    return costs


def _solve(table: Floats, times: Floats, waits: NDArray[np.bool_]) -> Floats:
    """[fixed, weights, prefill_token, sequence, prefill_context, cached_token, experts] for a given split of the steps.
    table: P, S, C, K and the share of the experts that is touched."""
    from scipy.optimize import nnls

    prefill, sequences, context, cached, touched = table.T
    columns = [np.ones(len(times)), waits, prefill * ~waits, sequences * ~waits, context, cached, touched]
    rows = np.stack(columns, axis=1).astype(np.float64) / times[:, None]
    scale = np.maximum(np.linalg.norm(rows, axis=0), 1e-300)
    trust = np.ones(len(times))
    costs = np.zeros(len(scale))
    for _ in range(4):
        solution, _ = nnls(rows / scale * trust[:, None], trust)
        costs = solution / scale
        residual = np.abs(rows @ costs - 1)
        trust = 1 / np.sqrt(np.maximum(residual, 0.01))
    return costs


def _predict(costs: Floats, table: Floats) -> Floats:
    fixed, weights, prefill, sequence, context, cached, experts = costs
    compute = np.maximum(weights, table[:, 0] * prefill + table[:, 1] * sequence)
    total: Floats = fixed + compute + table[:, 2] * context + table[:, 3] * cached + table[:, 4] * experts
    return total
