"""Cutting a model's layers into consecutive pipeline stages so that the slowest stage is as fast as possible
(AlpaServe, OSDI '23). Knows only numbers per layer: nothing of models, devices or shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placement.errors import InfeasibleError, InputError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Sums of equal layers taken at different places differ by rounding: stages this close (as a share of the
# whole model) count as equally slow.
_EQUAL = 1e-12


@dataclass(frozen=True, eq=False)
class Slicing:
    """Stage s holds the layers boundaries[s] up to, not including, boundaries[s + 1]."""

    boundaries: NDArray[np.int64]
    """[stages + 1], from 0 to the number of layers, strictly ascending."""
    stage_latency_s: Floats
    """[stages], with the transfer into the stage."""
    stage_memory_bytes: Floats
    """[stages]"""

    @property
    def slowest_s(self) -> float:
        return float(self.stage_latency_s.max())


def slice_stages(
    latency_s: ArrayLike,
    memory_bytes: ArrayLike,
    stages: int,
    *,
    transfer_s: ArrayLike | None = None,
    device_memory_bytes: ArrayLike | None = None,
) -> Slicing:
    """The best cut of the layers into `stages` parts of one layer or more, in O(stages * layers^2).

    latency_s [layers], memory_bytes [layers]; transfer_s [layers - 1]: what a cut after each layer adds to
    the stage that receives; device_memory_bytes: what a stage may hold, one number or [stages].

    1. F(s, k) = min over i of max(F(s - 1, i), latency(i..k)) over the stages that fit in memory.
    2. Among the cuts whose slowest stage is F(stages, layers): the least sum of transfers, then the most even
       memory (least sum of squares), then the earlier boundary, seen from the last one.
    """
    latency = _layer_values(latency_s, "layer latency")
    layers = len(latency)
    memory = _layer_values(memory_bytes, "layer memory", layers)
    cuts = np.zeros(layers - 1) if transfer_s is None else _layer_values(transfer_s, "transfer", layers - 1)
    if not 1 <= stages <= layers:
        raise InputError(f"{layers} layers cannot be cut into {stages} stages; 1 to {layers} are possible")
    room = _room(device_memory_bytes, stages)

    received = np.concatenate([[0.0], cuts])  # by the stage that starts at each layer
    stage_s = _range_sums(latency) + received[:, None]
    stage_bytes = _range_sums(memory)
    fits = {limit: stage_bytes <= limit for limit in set(room.tolist())}
    slowest = _least_slowest(stage_s, [fits[limit] for limit in room.tolist()])
    if not np.isfinite(slowest):
        raise InfeasibleError(_why_nothing_fits(memory, room))
    fast = stage_s <= slowest + _EQUAL * (latency.sum() + cuts.sum())
    allowed = {limit: fast & fit for limit, fit in fits.items()}
    boundaries = _best_among_equal(received, stage_bytes, [allowed[limit] for limit in room.tolist()])
    starts = boundaries[:-1]
    return Slicing(
        boundaries=boundaries,
        stage_latency_s=np.add.reduceat(latency, starts) + received[starts],
        stage_memory_bytes=np.add.reduceat(memory, starts),
    )


def _range_sums(values: Floats) -> Floats:
    """[layers, layers + 1]: entry (i, k) is the sum of values[i:k]; infinite where k <= i is no stage."""
    ends = np.concatenate([[0.0], np.cumsum(values)])
    sums: Floats = ends[None, :] - ends[:-1, None]
    sums[np.tril_indices_from(sums)] = np.inf
    return sums


def _least_slowest(stage_s: Floats, fits: list[Mask]) -> float:
    """Step 1: F(stages, layers); infinite when no cut fits. All [layers, layers + 1], fits for each stage."""
    best = np.full(stage_s.shape[1], np.inf)
    best[0] = 0.0
    for fit in fits:
        best = np.maximum(best[:-1, None], stage_s).min(axis=0, where=fit, initial=np.inf)
    return float(best[-1])


def _best_among_equal(received: Floats, stage_bytes: Floats, allowed: list[Mask]) -> NDArray[np.int64]:
    """Step 2: boundaries [stages + 1] out of the stages allowed, [layers, layers + 1] for each stage. Both
    measures are sums over stages, so the best cut is made of best beginnings, as in step 1.
    """
    layers = len(received)
    squares = stage_bytes**2
    transfers = [np.full(layers + 1, np.inf)]
    transfers[0][0] = 0.0
    unevenness = [transfers[0]]
    for mask in allowed:
        sums = np.broadcast_to((transfers[-1][:-1] + received)[:, None], squares.shape)
        transfers.append(sums.min(axis=0, where=mask, initial=np.inf))
        least = mask & (sums <= transfers[-1])
        unevenness.append((unevenness[-1][:-1, None] + squares).min(axis=0, where=least, initial=np.inf))
    boundaries = np.full(len(allowed) + 1, layers)
    for stage in range(len(allowed) - 1, -1, -1):
        end = boundaries[stage + 1]
        least = transfers[stage][:-1] + received <= transfers[stage + 1][end]
        even = unevenness[stage][:-1] + squares[:, end] <= unevenness[stage + 1][end]
        boundaries[stage] = np.argmax(allowed[stage][:, end] & least & even)
    return boundaries


def _layer_values(values: ArrayLike, what: str, count: int | None = None) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or len(array) != (len(array) if count is None else count):
        needed = "a list of numbers" if count is None else f"a list of {count} numbers"
        raise InputError(f"{what} has the form {list(array.shape)}; it must be {needed}")
    if count is None and len(array) == 0:
        raise InputError(f"{what} is empty; a model has at least one layer")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise InputError(f"{what} {wrong[0]} is {array[wrong[0]]}; it must be a finite number of 0 or more")
    return array


def _room(device_memory_bytes: ArrayLike | None, stages: int) -> Floats:
    """[stages] bytes a stage may hold; infinite where there is no limit."""
    limits = np.asarray(np.inf if device_memory_bytes is None else device_memory_bytes, np.float64)
    if limits.shape not in ((), (stages,)):
        raise InputError(f"device memory has the form {list(limits.shape)}; one number or {stages} are needed")
    if np.isnan(limits).any():
        raise InputError("device memory is not a number")
    return np.broadcast_to(limits, (stages,))


def _why_nothing_fits(memory: Floats, room: Floats) -> str:
    largest = int(memory.argmax())
    if memory[largest] > room.max():
        limit = f"layer {largest} alone needs {memory[largest]:.0f} bytes, a stage has only {room.max():.0f}"
    elif memory.sum() > room.sum():
        limit = f"the layers need {memory.sum():.0f} bytes, {len(room)} stages have only {room.sum():.0f}"
    else:
        limit = f"no cut into {len(room)} consecutive stages keeps each within its {room.min():.0f} bytes"
    return f"device memory is too small for {len(memory)} layers: {limit}"
