"""Pollux' goodput model: seconds of an iteration, what a batch is worth, and the batch size that serves best.

goodput = throughput x efficiency; efficiency(M) = (phi + M0) / (phi + M), phi the gradient noise scale. Throughput at
K replicas on N nodes, m samples each and s accumulated sub-batches: M / T_iter with M = K m (s + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from training.arrays import Floats, Ints
from training.jobs import Batch, Pollux

MOST_SUB_BATCHES = 8
BATCHES = 24
"""Total batch sizes that are tried between the smallest and the largest."""


def gradient_time(model: Pollux, samples: Any) -> Any:
    """T_grad of one (sub-)batch of `samples` on a device."""
    return model.alpha_grad + model.beta_grad * samples


def sync_time(model: Pollux, replicas: Any, nodes: Any) -> Any:
    """T_sync: none for one replica, on one node or across."""
    extra = np.maximum(replicas - 2, 0)
    local = model.alpha_local + model.beta_local * extra
    across = model.alpha_node + model.beta_node * extra
    return np.where(replicas <= 1, 0.0, np.where(nodes <= 1, local, across))


def iteration_time(model: Pollux, replicas: Any, nodes: Any, samples: Any, accumulated: Any) -> Any:
    """T_iter = s T_grad + (T_grad^g + T_sync^g)^(1/g)"""
    grad, sync = gradient_time(model, samples), sync_time(model, replicas, nodes)
    high, low = np.maximum(grad, sync), np.minimum(grad, sync)
    overlap = high * (1 + (low / np.maximum(high, 1e-300)) ** model.gamma) ** (1 / model.gamma)
    return accumulated * grad + overlap


def efficiency(noise_scale: Any, first: Any, batch: Any) -> Any:
    return (noise_scale + first) / (noise_scale + batch)


@dataclass(frozen=True)
class Tuned:
    """The best way to run with given replicas, [n]: goodput, total batch, and its sub-batches."""

    goodput: Floats
    batch: Floats
    device_batch: Floats
    accumulated: Ints


def tune(
    model: Pollux, batch: Batch, replicas: Ints | Floats, nodes: Ints | Floats, noise_scale: float | None = None
) -> Tuned:
    """The batch size and sub-batches with the greatest goodput for each (replicas, nodes)."""
    phi = model.noise_scale if noise_scale is None else noise_scale
    count, spread = np.asarray(replicas, np.float64)[:, None, None], np.asarray(nodes, np.float64)[:, None, None]
    largest = np.maximum(np.minimum(batch.largest, count * batch.device_largest * (MOST_SUB_BATCHES + 1)), batch.start)
    total = batch.start * (largest / batch.start) ** np.linspace(0, 1, BATCHES)[None, :, None]
    sub = np.arange(MOST_SUB_BATCHES + 1)[None, None, :]
    each = total / (count * (sub + 1))
    seconds = iteration_time(model, count, spread, each, sub)
    good = total / seconds * efficiency(phi, batch.start, total)
    good = np.where((each <= batch.device_largest * (1 + 1e-9)) & (each >= 1 - 1e-9), good, 0.0)
    flat = good.reshape(len(good), -1)
    best = flat.argmax(axis=1)
    rows = np.arange(len(best))
    total, each, sub = (
        np.broadcast_to(part, good.shape).reshape(len(good), -1)[rows, best] for part in (total, each, sub)
    )
    return Tuned(flat[rows, best], total, each, sub.astype(np.int64))


def best_goodput(model: Pollux, batch: Batch, replicas: Ints | Floats, nodes: Ints | Floats) -> Floats:
    """Goodput at the best batch size, [n]"""
    return tune(model, batch, replicas, nodes).goodput


def learning_rate_scale(batch: float, first: float, noise_scale: float, rule: str = "adascale") -> float:
    """What to multiply the learning rate by at a larger batch: AdaScale's gain, or the square root of the ratio."""
    ratio = batch / first
    if rule == "sqrt":
        return float(np.sqrt(ratio))
    # AdaScale: (variance + mean^2) / (variance / ratio + mean^2), with variance / mean^2 = noise_scale / first.
    relative = noise_scale / first
    return float((relative + 1) / (relative / ratio + 1))
