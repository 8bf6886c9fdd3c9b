"""Request traffic in short ticks: ServeGen's clients drawn request by request, alone or behind a curve of servers.

Work is counted in server-seconds. Knows nothing of loans or of training.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import gammaln

from placement.errors import InputError
from training.arrays import Bools, Floats
from training.cosimulation.fluid import late_of
from training.demand import Demand
from training.job_files import read_text

CV_LEAST = 0.05
HALVINGS = 20


@dataclass(frozen=True)
class Traffic:
    """What is asked for in each tick, [ticks]."""

    tick_s: float
    work: Floats
    """Server-seconds."""
    requests: Floats

    def __post_init__(self) -> None:
        assert self.work.shape == self.requests.shape
        assert (self.work >= 0).all()

    @property
    def seconds(self) -> float:
        return self.tick_s * len(self.work)

    def of(self, start_s: float, stop_s: float) -> Traffic:
        """A part of it."""
        part = slice(round(start_s / self.tick_s), round(stop_s / self.tick_s))
        return Traffic(self.tick_s, self.work[part], self.requests[part])


@dataclass(frozen=True)
class Clients:
    """Rates and burstiness of clients in windows of a week."""

    window_s: float
    rate: Floats
    """Requests a second, [clients, windows]"""
    cv: Floats
    """Of the gaps between them, [clients, windows]"""
    weibull: Bools
    """Gaps are Weibull, else Gamma, [clients, windows]"""
    tokens: Floats
    """Of a request, prompt and output, [clients]"""

    @property
    def tokens_per_s(self) -> Floats:
        """Expected, [windows]"""
        expected: Floats = self.tokens @ self.rate
        return expected


@dataclass(frozen=True)
class Drawn:
    """Requests of clients as they came in, [ticks]."""

    tick_s: float
    requests: Floats
    tokens: Floats
    expected_tokens: Floats
    """By the rates of the window."""


def read_clients(folder: Path, name: str = "m-large") -> Clients:
    """ServeGen's files. A client without measured tokens has the median of the others."""
    with np.load(folder / f"{name}_days1-7_rate_cv.npz") as file:
        ids, starts = file["client_id"], file["window_start_s"]
        rate, cv, weibull = file["rate"].astype(np.float64), file["cv"].astype(np.float64), file["dist"] == 2
    known = {
        int(row["client"]): float(row["input_tokens_mean"]) + float(row["output_tokens_mean"])
        for row in csv.DictReader(io.StringIO(read_text(folder / f"{name}_client_tokens.csv")))
    }
    if len(starts) < 2 or not known:
        raise InputError(f"{folder}: no windows, or no client with tokens")
    usual = float(np.median(list(known.values())))
    tokens = np.array([known.get(int(client), usual) for client in ids])
    return Clients(float(starts[1] - starts[0]), rate, np.maximum(cv, CV_LEAST), weibull, tokens)


def draw(clients: Clients, seconds: float, tick_s: float, seed: int = 0, start_s: float = 0.0) -> Drawn:
    """A renewal process for each client in each window, begun in equilibrium so that the expected count is that of
    the rate; the week comes again and again, each time drawn anew."""
    rng = np.random.default_rng(seed)
    span, windows = clients.window_s, clients.rate.shape[1]
    ticks = round(span / tick_s)
    assert math.isclose(ticks * tick_s, span), "windows must hold whole ticks"
    first, count = int(start_s // span), math.ceil(seconds / span)
    requests, tokens = np.zeros((count, ticks)), np.zeros((count, ticks))
    for row in range(count):
        window = (first + row) % windows
        for client in np.flatnonzero(clients.rate[:, window] > 0).tolist():
            arrivals = _renewals(
                float(clients.rate[client, window]),
                float(clients.cv[client, window]),
                bool(clients.weibull[client, window]),
                span,
                rng,
            )
            counts = np.bincount((arrivals / tick_s).astype(np.int64), minlength=ticks)[:ticks]
            requests[row] += counts
            tokens[row] += counts * clients.tokens[client]
    expected = np.repeat(clients.tokens_per_s[(first + np.arange(count)) % windows] * tick_s, ticks)
    keep = round(seconds / tick_s)
    return Drawn(tick_s, requests.ravel()[:keep], tokens.ravel()[:keep], expected[:keep])


def behind(needed: Demand, drawn: Drawn, fill: float) -> Traffic:
    """Traffic for which `needed` servers are needed: in each tick `fill` of their time is asked for, times what the
    clients drew over what was expected of them."""
    now = np.arange(len(drawn.tokens)) * drawn.tick_s
    servers = needed.servers[np.maximum(np.searchsorted(needed.time, now, side="right") - 1, 0)].astype(np.float64)
    noise = np.divide(drawn.tokens, drawn.expected_tokens, out=np.ones_like(now), where=drawn.expected_tokens > 0)
    work: Floats = (fill * drawn.tick_s) * servers * noise
    return Traffic(drawn.tick_s, work, drawn.requests)


def fill_that_holds(needed: Demand, drawn: Drawn, attainment: float, slack_s: float) -> float:
    """The fill at which exactly the servers needed serve that share of the work in time: what `needed` means."""
    whole = behind(needed, drawn, 1.0)
    now = np.arange(len(whole.work)) * whole.tick_s
    serving = needed.servers[np.searchsorted(needed.time, now, side="right") - 1].astype(np.float64)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        late = late_of(middle * whole.work, serving, whole.tick_s, slack_s).sum()
        if late <= (1 - attainment) * middle * whole.work.sum():
            low = middle
        else:
            high = middle
    return low


def _renewals(rate: float, cv: float, weibull: bool, seconds: float, rng: np.random.Generator) -> Floats:
    """Arrival times in [0, seconds)."""
    shape = _weibull_shape(cv) if weibull else 1 / cv**2
    scale = 1 / (rate * math.gamma(1 + 1 / shape)) if weibull else 1 / (shape * rate)
    longer = scale * rng.gamma(1 + 1 / shape) ** (1 / shape) if weibull else scale * rng.gamma(shape + 1)
    parts = [np.array([longer * rng.random()])]
    several = int(rate * seconds + 4 * cv * math.sqrt(rate * seconds + 1)) + 16
    while parts[-1][-1] < seconds:
        gaps = scale * (rng.weibull(shape, several) if weibull else rng.standard_gamma(shape, several))
        parts.append(parts[-1][-1] + np.cumsum(gaps))
    arrivals = np.concatenate(parts)
    return arrivals[arrivals < seconds]


_SHAPES = np.geomspace(0.12, 50.0, 2000)
_CVS = np.sqrt(np.expm1(gammaln(1 + 2 / _SHAPES) - 2 * gammaln(1 + 1 / _SHAPES)))
"""Of Weibull gaps with these shapes; it falls."""


def _weibull_shape(cv: float) -> float:
    return float(np.interp(-cv, -_CVS, _SHAPES))
