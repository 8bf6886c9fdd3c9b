"""How many tokens the prompts and answers have: log-normal, by quantiles, or drawn from a trace."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loadgen import checks
from loadgen.errors import TrafficError

Counts = NDArray[np.int32]

MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """Prompt and output tokens of the same requests."""

    prompt: Counts
    output: Counts

    @classmethod
    def none(cls, count: int) -> "TokenCounts":
        return cls(np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int32))

    def rows(self, index: NDArray[np.int64]) -> "TokenCounts":
        return TokenCounts(self.prompt[index], self.output[index])


class Lengths(Protocol):
    """A distribution of one count."""

    def draw(self, count: int, rng: np.random.Generator) -> Counts: ...


class TokenModel(Protocol):
    """A joint distribution of prompt and output tokens."""

    def draw(self, count: int, rng: np.random.Generator) -> TokenCounts: ...


@dataclass(frozen=True)
class LogNormal:
    """Log-normal by mean and cv (0: always the mean), rounded, then held within [low, high]."""

    mean: float
    cv: float = 0.0
    low: int = 1
    high: int = MOST_TOKENS

    def __post_init__(self) -> None:
        checks.positive(self.mean, "mean", MOST_TOKENS)
        checks.within(self.cv, "cv", 0, checks.MAX_CV)
        checks.whole(self.low, "min", 0, MOST_TOKENS)
        checks.whole(self.high, "max", self.low, MOST_TOKENS)

    def draw(self, count: int, rng: np.random.Generator) -> Counts:
        sigma = math.sqrt(math.log1p(self.cv**2))
        values = np.exp(rng.standard_normal(count) * sigma + (math.log(self.mean) - sigma**2 / 2))
        return _whole(values, self.low, self.high)


@dataclass(frozen=True)
class Quantiles:
    """Through the given quantiles, straight in the logarithm between them, constant beyond the outermost."""

    probability: Sequence[float]
    value: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.probability) != len(self.value) or not self.value:
            raise TrafficError("quantiles: give as many values as probabilities, at least one")
        for name, column in (("probability", self.probability), ("value", self.value)):
            if list(column) != sorted(column):
                raise TrafficError(f"quantiles: {name} {checks.shown(list(column))} falls; give it ascending")
        checks.within(self.probability[0], "quantiles.probability", 0, 1)
        checks.within(self.probability[-1], "quantiles.probability", 0, 1)
        checks.within(self.value[0], "quantiles.value", 0, MOST_TOKENS)
        checks.within(self.value[-1], "quantiles.value", 0, MOST_TOKENS)

    def draw(self, count: int, rng: np.random.Generator) -> Counts:
        log_value = np.log(np.maximum(self.value, 1.0))
        return _whole(np.exp(np.interp(rng.random(count), self.probability, log_value)), 1, MOST_TOKENS)


@dataclass(frozen=True)
class Independent:
    """Prompt and output drawn apart."""

    prompt: Lengths
    output: Lengths

    def draw(self, count: int, rng: np.random.Generator) -> TokenCounts:
        prompt_rng, output_rng = rng.spawn(2)
        return TokenCounts(self.prompt.draw(count, prompt_rng), self.output.draw(count, output_rng))


@dataclass(frozen=True, eq=False)
class FromTrace:
    """Requests of a trace drawn with replacement; prompt and output come together, and stay correlated."""

    trace: TokenCounts

    def __post_init__(self) -> None:
        if self.trace.prompt.size == 0 or self.trace.prompt.size != self.trace.output.size:
            raise TrafficError("tokens: the trace has no token counts to draw from; give one with both columns")

    def draw(self, count: int, rng: np.random.Generator) -> TokenCounts:
        return self.trace.rows(rng.integers(self.trace.prompt.size, size=count))


def _whole(values: NDArray[np.float64], low: int, high: int) -> Counts:
    return np.clip(np.rint(values), low, high).astype(np.int32)
