"""A workload: requests in order of arrival, each with its model and, for generation, its token counts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadgen import checks
from loadgen.arrivals import Times
from loadgen.errors import TrafficError
from loadgen.tokens import Counts, TokenCounts


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Arrays of one length. `arrival` in seconds, ascending from 0; `model` an index into the list of models.

    Token counts are None when no model generates; 0 marks a request of a model that does not.
    """

    arrival: Times
    model: NDArray[np.int32]
    prompt_tokens: Counts | None = None
    output_tokens: Counts | None = None

    def __post_init__(self) -> None:
        _check_column(self.arrival, "arrival", np.float64, self.arrival.size)
        _check_column(self.model, "model", np.int32, self.arrival.size)
        if (self.prompt_tokens is None) != (self.output_tokens is None):
            raise TrafficError("prompt_tokens, output_tokens: one without the other; give both or neither")
        for name in ("prompt_tokens", "output_tokens"):
            column = getattr(self, name)
            if column is not None:
                _check_column(column, name, np.int32, self.arrival.size)
                _check_not_negative(column, name)
        _check_times(self.arrival)
        _check_not_negative(self.model, "model")

    def __len__(self) -> int:
        return int(self.arrival.size)

    def scaled(self, rate: float) -> "Arrivals":
        """The same requests at `rate` times the rate: every time divided by it."""
        factor = checks.positive(rate, "rate")
        with np.errstate(over="ignore"):
            times = self.arrival / factor
        return replace(self, arrival=times)


def merge(times: Sequence[Times], tokens: Sequence[TokenCounts | None]) -> Arrivals:
    """One workload from the arrivals of each model, in order of time, then of model."""
    arrival = np.concatenate(times) if times else np.empty(0)
    model = np.repeat(np.arange(len(times), dtype=np.int32), [part.size for part in times])
    order = np.argsort(arrival, kind="stable")
    if all(part is None for part in tokens):
        return Arrivals(arrival[order], model[order])
    none = [TokenCounts.none(part.size) for part in times]
    filled = [given or empty for given, empty in zip(tokens, none, strict=True)]
    prompt = np.concatenate([part.prompt for part in filled])
    output = np.concatenate([part.output for part in filled])
    return Arrivals(arrival[order], model[order], prompt[order], output[order])


def _check_column(column: NDArray[np.generic], name: str, dtype: type[np.generic], size: int) -> None:
    if column.ndim != 1 or column.dtype != dtype or column.size != size:
        raise TrafficError(
            f"{name}: {column.dtype} of shape {column.shape}; give {np.dtype(dtype).name} of shape ({size},)"
        )


def _check_times(times: Times) -> None:
    wrong = np.flatnonzero(~np.isfinite(times) | (times < 0))
    if wrong.size:
        raise TrafficError(f"arrival[{wrong[0]}]: {times[wrong[0]]} is not a time; give finite seconds from 0")
    back = np.flatnonzero(np.diff(times) < 0)
    if back.size:
        at = int(back[0]) + 1
        raise TrafficError(f"arrival[{at}]: {times[at]} comes after {times[at - 1]}; give times in ascending order")


def _check_not_negative(column: NDArray[np.int32], name: str) -> None:
    wrong = np.flatnonzero(column < 0)
    if wrong.size:
        raise TrafficError(f"{name}[{wrong[0]}]: {column[wrong[0]]} is negative; give whole numbers from 0")
