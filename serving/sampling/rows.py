"""One step's sampling wishes as columns, a row for each sequence: what the sampler reads. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.sampling.parameters import SamplingParams
from serving.sampling.uniform import uniforms

NO_LOGPROBS = -1
"""In the column `logprobs`: this row wants none (0: the chosen token's alone)."""
LEAST_TEMPERATURE = 1e-5
"""Below it, a row takes the likeliest token."""


class Sampleable(Protocol):
    """What a sequence must tell to be sampled."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def seed(self) -> int: ...
    @property
    def prompt_ids(self) -> Sequence[int] | NDArray[np.int64]: ...
    @property
    def output_ids(self) -> Sequence[int] | NDArray[np.int64]: ...


@dataclass(frozen=True)
class LogitEdits:
    """Changes to one row's logits before anything else looks at them."""

    row: int
    prompt_ids: NDArray[np.int64]
    """Tokens of the prompt, in any order; the repetition penalty counts them."""
    output_ids: NDArray[np.int64]
    """Tokens of the output so far; every penalty counts them."""
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    bias_ids: NDArray[np.int64]
    """Without duplicates."""
    bias: NDArray[np.float32]
    banned_ids: NDArray[np.int64]
    """Tokens that must not come now."""


@dataclass(frozen=True)
class SamplingRows:
    """Columns of equal length [rows]."""

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    uniform: NDArray[np.float64]
    """In [0, 1): where in the row's cumulative distribution the token lies."""
    logprobs: NDArray[np.int64]
    edits: tuple[LogitEdits, ...] = ()

    def __post_init__(self) -> None:
        columns = (self.temperature, self.top_k, self.top_p, self.min_p, self.uniform, self.logprobs)
        assert {column.shape for column in columns} == {self.temperature.shape}
        assert self.temperature.ndim == 1

    @property
    def greedy(self) -> NDArray[np.bool_]:
        """[rows] which take the likeliest token whatever their number."""
        greedy: NDArray[np.bool_] = (self.temperature < LEAST_TEMPERATURE) | (self.top_k == 1)
        return greedy


def build_rows(sequences: Sequence[Sampleable], eos_token_ids: Sequence[int]) -> SamplingRows:
    """The columns for these sequences' next tokens; histories are read only where a penalty needs them."""
    params = [sequence.params for sequence in sequences]
    produced = np.array([len(sequence.output_ids) for sequence in sequences], np.int64)
    seeds = np.array([sequence.seed for sequence in sequences], np.int64)
    return SamplingRows(
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([p.top_k for p in params], np.int64),
        top_p=np.array([p.top_p for p in params], np.float64),
        min_p=np.array([p.min_p for p in params], np.float64),
        uniform=uniforms(seeds, produced),
        logprobs=np.array([NO_LOGPROBS if p.logprobs is None else p.logprobs for p in params], np.int64),
        edits=tuple(
            [_edits(row, sequence, eos_token_ids) for row, sequence in enumerate(sequences) if _is_edited(sequence)]
        ),
    )


def _is_edited(sequence: Sampleable) -> bool:
    p = sequence.params
    if p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0 or p.logit_bias:
        return True
    return p.min_tokens > 0 and len(sequence.output_ids) < p.min_tokens


def _edits(row: int, sequence: Sampleable, eos_token_ids: Sequence[int]) -> LogitEdits:
    p = sequence.params
    ends = (*p.stop_token_ids, *(() if p.ignore_eos else eos_token_ids))
    counts_output = p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0
    biases = p.logit_bias or {}
    return LogitEdits(
        row=row,
        prompt_ids=_ids(sequence.prompt_ids if p.repetition_penalty != 1 else ()),
        output_ids=_ids(sequence.output_ids if counts_output else ()),
        repetition_penalty=p.repetition_penalty,
        presence_penalty=p.presence_penalty,
        frequency_penalty=p.frequency_penalty,
        bias_ids=_ids(tuple(biases)),
        bias=np.array(tuple(biases.values()), np.float32),
        banned_ids=_ids(ends if len(sequence.output_ids) < p.min_tokens else ()),
    )


def _ids(tokens: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(tokens, np.int64)
