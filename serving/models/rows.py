"""Norms and rotations of float32 rows on a CPU core, compiled: torch does each in six to ten passes over its input.

Only for inference (nothing here can be differentiated); `norms` and `rope` choose between these and torch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

import placement.compiled  # noqa: F401  (decides where compiled code is kept)

Floats = NDArray[np.float32]

_compiled: Any = numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")


@_compiled  # type: ignore[untyped-decorator]
def rms_norm(x: Floats, weight: Floats, eps: float, y: Floats) -> None:
    """x, y [rows, size], weight [size]."""
    rows, size = x.shape
    for row in range(rows):
        total = np.float32(0.0)
        for column in range(size):
            total += x[row, column] * x[row, column]
        factor = np.float32(1.0 / np.sqrt(total / size + eps))
        for column in range(size):
            y[row, column] = x[row, column] * factor * weight[column]


@_compiled  # type: ignore[untyped-decorator]
def rotate(qkv: Floats, heads: int, cos: Floats, sin: Floats) -> None:
    """Turn the first `heads` of qkv [tokens, heads, size] in place; cos, sin [tokens, size / 2]."""
    tokens, _, size = qkv.shape
    half = size // 2
    for token in range(tokens):
        for head in range(heads):
            for place in range(half):
                first, second = qkv[token, head, place], qkv[token, head, half + place]
                c, s = cos[token, place], sin[token, place]
                qkv[token, head, place] = first * c - second * s
                qkv[token, head, half + place] = second * c + first * s
