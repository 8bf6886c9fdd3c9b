"""Other draws of the traffic than the one that was recorded, so that a plan does not fit one coincidence.

A recording of some minutes says little about which model will burst next: the number of requests of a model with
rate r and burstiness cv has a standard error of cv / sqrt(n). So each draw gives every model the arrivals of another
one, shifted in time and stretched to the rate the model is believed to have: its own, drawn towards the mean of all
as far as their differences are explained by chance (James and Stein), and with the error that such a count has. Where
the models rise and fall together (a day), identities are kept and shifts are small.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placement.clocks import Floats
from placement.workload import Workload

MOST_REQUESTS = 12_000
"""What search simulates of one draw: enough to tell candidates apart, and its cost does not grow with the recording."""
_WINDOWS = 20
_FEW_WINDOWS = 10
_TOGETHER = 3.0
_SMALL_SHIFT = 0.05
_MOST_ERROR = 0.5


def make_draws(workload: Workload, models: int, count: int, seed: int, scale: float = 1.0) -> list[Workload]:
    """The workload itself and `count` - 1 others, all at `scale` times its rate."""
    draws = [workload] + [draw_like(workload, models, seed, n) for n in range(1, count)]
    return [draw.faster(scale) for draw in draws] if scale != 1.0 else draws


def cut(workload: Workload, seed: int, number: int) -> Workload:
    """A stretch of at most MOST_REQUESTS requests, from a moment that depends on the seed and the number."""
    if len(workload) <= MOST_REQUESTS:
        return workload
    first = int(np.random.default_rng([seed, number, 1]).integers(len(workload) - MOST_REQUESTS))
    part = workload.select(np.arange(first, first + MOST_REQUESTS))
    return replace(part, arrival=part.arrival - part.arrival[0])


def believed_rates(workload: Workload, models: int) -> Floats:
    """[models] requests per second, each drawn towards the mean as far as chance explains their differences."""
    counts = workload.counts(models).astype(np.float64)
    rates = counts / max(workload.duration, 1e-9)
    asked = counts > 0
    if asked.sum() < 3:
        return rates
    logs = np.log(counts[asked])
    spread = float(logs.var(ddof=1))
    chance = float(np.mean(chance_of_counts(workload, models)[asked] ** 2))
    keep = max(1.0 - chance / spread, 0.0) if spread > 0 else 0.0
    believed = np.exp(logs.mean() + keep * (logs - logs.mean()))
    rates[asked] = believed * rates.sum() / believed.sum()
    return rates


def chance_of_counts(workload: Workload, models: int) -> Floats:
    """[models] standard error of the logarithm of each model's count; 0 where it has none."""
    counts = workload.counts(models).astype(np.float64)
    asked = counts > 0
    table = _counts_per_window(workload, models, _FEW_WINDOWS)[asked]
    # Index of dispersion: the variance of a count over its mean, cv^2 for a renewal process seen long enough.
    dispersion = float(np.median(table.var(axis=1, ddof=1) / table.mean(axis=1))) if asked.any() else 0.0
    return np.sqrt(np.divide(dispersion, counts, out=np.zeros(models), where=asked))


def rise_together(workload: Workload, models: int) -> bool:
    """Whether the traffic of all varies more than the models would, each by itself."""
    table = _counts_per_window(workload, models, _WINDOWS)
    alone = float(table.var(axis=1).sum())
    return float(table.sum(axis=0).var()) > _TOGETHER * alone


def draw_like(workload: Workload, models: int, seed: int, number: int) -> Workload:
    """One other draw of the traffic; it depends on the seed and its number alone."""
    if not len(workload):
        return workload
    rng = np.random.default_rng([seed, number])
    span = max(workload.duration, 1e-9)
    own = workload.counts(models) / span
    asked = np.flatnonzero(own > 0)
    together = rise_together(workload, models)
    donor = np.arange(models)
    if not together:
        donor[asked] = rng.permutation(asked)
    rates = own
    if not together:
        # Another recording of the same traffic would have other counts, too.
        error = np.minimum(chance_of_counts(workload, models), _MOST_ERROR)
        rates = believed_rates(workload, models) * np.exp(error * rng.standard_normal(models) - error**2 / 2)
    reach = _SMALL_SHIFT if together else 0.5
    times, rows = [], []
    for model in asked:
        played = workload.arrival[workload.model == donor[model]]
        shift = rng.uniform(-reach, reach) * span
        times.append(_stretched(played, shift, own[donor[model]] / rates[model], span))
        # The moments are another model's; the tokens are its own.
        rows.append(rng.choice(np.flatnonzero(workload.model == model), len(times[-1])))
    arrival = np.concatenate(times)
    order = np.argsort(arrival, kind="stable")
    return replace(workload.select(np.concatenate(rows)[order]), arrival=arrival[order])


def _stretched(arrival: Floats, shift: float, stretch: float, span: float) -> Floats:
    """One model's arrivals in [0, span), shifted around its end and stretched in time, repeated to fill the span."""
    shifted = np.sort(np.mod(arrival + shift, span))
    rounds = int(np.ceil(1 / max(stretch, 1e-3)))
    times = np.concatenate([(shifted + turn * span) * stretch for turn in range(rounds)])
    return times[times < span]


def _counts_per_window(workload: Workload, models: int, windows: int) -> Floats:
    """[models, windows] requests."""
    position = workload.arrival / max(workload.duration, 1e-9) * windows
    window = np.minimum(position.astype(np.int64), windows - 1)
    table = np.zeros((models, windows))
    np.add.at(table, (workload.model, window), 1)
    return table
