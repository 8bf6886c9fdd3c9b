"""ServeGen's client traffic: rate, cv and kind of gap per client and window, and token quantiles per client.

These are measurements, not request logs: arrivals are drawn, in equilibrium at the start of each window. A
client plays the part of a model.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen import checks
from loadgen.arrivals import Times, gamma_arrivals, weibull_arrivals, whole_ns
from loadgen.errors import TrafficError
from loadgen.tokens import Independent, Quantiles
from loadgen.traces import cell_number, csv_rows, naming, npz_fields

_NONE, _GAMMA, _WEIBULL = 0, 1, 2
_LEAST_CV = 0.01
_PERCENTILES = (10, 25, 50, 75, 90, 99)


@dataclass(frozen=True, eq=False)
class ServeGen:
    """`rate_per_s`, `cv` and `gap_kind` (0 none, 1 Gamma, 2 Weibull) are [client, window]."""

    client_id: NDArray[np.int64]
    window_s: float
    rate_per_s: Times
    cv: Times
    gap_kind: NDArray[np.int64]

    @property
    def duration_s(self) -> float:
        return self.window_s * int(self.rate_per_s.shape[1])

    def arrivals(
        self,
        client: int,
        start_s: float,
        duration_s: float,
        rng: np.random.Generator,
        *,
        rate_scale: float = 1.0,
        cv_scale: float = 1.0,
    ) -> Times:
        """Arrivals of the client with this id in [start, start + duration) of the trace, start being 0."""
        row = np.flatnonzero(self.client_id == client)
        if row.size == 0:
            raise TrafficError(f"client {client}: not in the trace; give one of its {self.client_id.size} client ids")
        start = checks.within(start_s, "start", 0, self.duration_s)
        duration = checks.duration(duration_s)
        rate_factor = checks.within(rate_scale, "rate_scale", 0, 1e6)
        cv_factor = checks.positive(cv_scale, "cv_scale", checks.MAX_CV)
        # Half a nanosecond of grace for sums like 0.1 + 0.2.
        end = start + duration
        if end > self.duration_s + 5e-10:
            raise TrafficError(
                f"duration: start + duration is {end:g} s; the trace ends at {self.duration_s:g} s, give less"
            )
        rates = rate_factor * self.rate_per_s[row[0]]
        parts = [np.empty(0)]
        for window in range(int(start // self.window_s), self.rate_per_s.shape[1]):
            begin = max(window * self.window_s, start)
            length = min((window + 1) * self.window_s, end) - begin
            if length <= 0:
                break
            cv = min(max(cv_factor * float(self.cv[row[0], window]), _LEAST_CV), checks.MAX_CV)
            draw = weibull_arrivals if self.gap_kind[row[0], window] == _WEIBULL else gamma_arrivals
            parts.append(begin - start + draw(float(rates[window]), cv, length, rng))
        return whole_ns(np.concatenate(parts), duration)


def read_servegen(path: Path) -> ServeGen:
    """An .npz of client_id [c], window_start_s [w], rate, cv and dist [c, w]."""
    fields = npz_fields(path, ("client_id", "window_start_s", "rate", "cv", "dist"))
    for name, column in fields.items():
        if column.dtype.kind not in "fiu" or not np.isfinite(column.astype(np.float64)).all():
            raise TrafficError(f"{path}: {name} holds something that is not a finite number; give numbers")
    client, start = fields["client_id"], fields["window_start_s"].astype(np.float64)
    if client.ndim != 1 or start.ndim != 1 or start.size < 2 or np.unique(client).size != client.size:
        raise TrafficError(
            f"{path}: client_id, window_start_s: repeated or too few; give distinct ids, two windows or more"
        )
    window_s = float(start[1] - start[0])
    if window_s <= 0 or not np.allclose(np.diff(start), window_s, rtol=1e-9, atol=0):
        raise TrafficError(f"{path}: window_start_s is not evenly spaced; give windows of one length, ascending")
    for name in ("rate", "cv", "dist"):
        if fields[name].shape != (client.size, start.size):
            wanted = f"[client, window] {(client.size, start.size)}"
            raise TrafficError(f"{path}: {name} has shape {fields[name].shape}; give {wanted}")
    rate, cv, dist = (fields[name].astype(np.float64) for name in ("rate", "cv", "dist"))
    _refuse(rate < 0, path, "rate", "is negative; give requests per second from 0")
    _refuse(
        ~np.isin(dist, (_NONE, _GAMMA, _WEIBULL)),
        path,
        "dist",
        "is unknown; give 0, 1 (Gamma) or 2 (Weibull)",
    )
    _refuse((rate > 0) & (dist == _NONE), path, "dist", "is 0 where there is traffic; give 1 or 2")
    _refuse((rate > 0) & (cv <= 0), path, "cv", "is not above 0 where there is traffic; give a cv above 0")
    return ServeGen(client.astype(np.int64), window_s, rate, cv, dist.astype(np.int64))


def read_servegen_tokens(path: Path) -> dict[int, Independent]:
    """Token model of each client id, from the percentiles in the .csv; prompt and output are drawn apart."""
    columns = [f"{side}_tokens_p{p}" for side in ("input", "output") for p in _PERCENTILES]
    models: dict[int, Independent] = {}
    with naming(path):
        for line, row in csv_rows(path, ["client", *columns]):
            client = cell_number(row, "client", path, line)
            if client != int(client) or int(client) in models:
                raise TrafficError(f"{path}:{line}: client {client:g} is not a new whole number; give each id once")
            values = [cell_number(row, name, path, line) for name in columns]
            half = len(_PERCENTILES)
            probability = tuple(p / 100 for p in _PERCENTILES)
            try:
                prompt, output = Quantiles(probability, values[:half]), Quantiles(probability, values[half:])
            except TrafficError as error:
                raise TrafficError(f"{path}:{line}: {error}") from None
            models[int(client)] = Independent(prompt, output)
    return models


def _refuse(wrong: NDArray[np.bool_], path: Path, name: str, why: str) -> None:
    if wrong.any():
        client, window = (int(axis[0]) for axis in np.nonzero(wrong))
        raise TrafficError(f"{path}: {name}[{client}, {window}] {why}")
