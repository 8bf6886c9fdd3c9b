"""What sampling gives back. Knows nothing of how it was found."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one position under the model's own distribution: before penalties, bias and temperature."""

    logprob: float
    """Of the chosen token."""
    top_ids: list[int]
    """The likeliest tokens, likeliest first, equally likely ones by id."""
    top_logprobs: list[float]


@dataclass(frozen=True)
class Sampled:
    """One step's choices; row r answers row r of the logits."""

    tokens: NDArray[np.int64]
    """[rows]"""
    failed: NDArray[np.bool_]
    """[rows] no token could be chosen (logits with NaN or +inf, or every token forbidden); the token is 0 there."""
    logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """None where not asked for, or where the row failed; None as a whole when no row asked."""
