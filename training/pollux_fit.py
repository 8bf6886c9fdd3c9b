"""Learning Pollux' model from a running job: iteration times give T_grad, T_sync and gamma; gradients give the noise
scale. Knows nothing of queues."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from training.arrays import Floats
from training.goodput import gradient_time, iteration_time
from training.jobs import Pollux

UNKNOWN = 1e-3
"""Weight that keeps what no observation speaks of small."""


@dataclass(frozen=True)
class Observations:
    """Iterations of a job, [n]: on so many nodes and replicas, with so many samples each, seconds in all and without
    waiting for the others."""

    nodes: Floats
    replicas: Floats
    samples: Floats
    step_s: Floats
    compute_s: Floats


def fit(seen: Observations, noise_scale: float = 0.0) -> Pollux:
    """The model that explains the observed times best, in relative terms.

    What was never observed (several replicas, several nodes) counts as free, so that a scheduler tries it.
    """
    several, across = bool((seen.replicas > 1).any()), bool((seen.nodes > 1).any())

    def model(values: Floats) -> Pollux:
        positive = np.exp(values[:6])
        known = positive * [1, 1, several, several, across, across]
        gamma = float(1 + 9 / (1 + np.exp(-values[6])))
        return Pollux(*(float(value) for value in (*known, gamma, noise_scale)))

    def error(values: Floats) -> float:
        guess = model(values)
        steps = iteration_time(guess, seen.replicas, seen.nodes, seen.samples, 0)
        grads = gradient_time(guess, seen.samples)
        off = np.mean(np.log(steps / seen.step_s) ** 2) + np.mean(np.log(grads / seen.compute_s) ** 2)
        return float(off + UNKNOWN * np.mean(np.exp(values[:6]) / seen.step_s.max()) * 1e-2)

    rough = seen.compute_s.mean()
    slope = max(float(np.polyfit(seen.samples, seen.compute_s, 1)[0]), 1e-6) if np.ptp(seen.samples) > 0 else 1e-6
    starts = [
        np.log([max(rough * share, 1e-6), slope, *[rough * sync] * 4]) for share in (0.5, 0.05) for sync in (0.1, 1)
    ]
    tries = [
        minimize(error, np.append(start, 0.0), method="L-BFGS-B", bounds=[(-30, 10)] * 6 + [(-6, 6)])
        for start in starts
    ]
    return model(min(tries, key=lambda found: float(found.fun)).x)


def noise_scale(small: Floats, large: Floats, small_batch: int, large_batch: int) -> float:
    """phi = trace of the gradients' covariance / squared norm of their mean, from squared norms of gradients at two
    batch sizes (McCandlish et al., appendix A): E|G_b|^2 = |G|^2 + trace / b."""
    low, high = float(np.mean(small)), float(np.mean(large))
    squared = (large_batch * high - small_batch * low) / (large_batch - small_batch)
    trace = (low - high) / (1 / small_batch - 1 / large_batch)
    return max(trace, 0.0) / max(squared, 1e-300)
