"""Norms, rotations, gates and embeddings of float32 rows on a CPU core, compiled: torch does each in several passes
over its input.

Only for inference (nothing here can be differentiated); `norms` and `rope` choose between these and torch.
"""

from __future__ import annotations

import math
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
def add(x: Floats, added: Floats) -> None:
    """x += added, both [rows, size]."""
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            x[row, column] += added[row, column]


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


@_compiled  # type: ignore[untyped-decorator]
def look_up(tokens: NDArray[np.int32], weight: Floats, start: int, y: Floats) -> None:
    """Rows of weight [here, size] into y [tokens, size], zeros for tokens elsewhere; the first here is start."""
    for place in range(len(tokens)):
        row = tokens[place] - start
        if 0 <= row < len(weight):
            for column in range(y.shape[1]):
                y[place, column] = weight[row, column]
        else:
            for column in range(y.shape[1]):
                y[place, column] = np.float32(0.0)


# 2**f for f in -0.5..0.5: its Taylor series, to 5e-9 of its value.
_C = tuple(np.float32(math.log(2) ** n / math.factorial(n)) for n in range(8))
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = _C
_LOG2E = np.float32(1 / math.log(2))


@_compiled  # type: ignore[untyped-decorator]
def gated_silu(up: Floats, y: Floats) -> None:
    """silu of the first half of up [rows, 2 width] times its second half, into y [rows, width]."""
    rows, width = y.shape
    for row in range(rows):
        for column in range(width):
            gate = up[row, column]
            # exp(-gate), as a power of two: the compiler makes vectors of this, and not of a call.
            x = min(max(-gate * _LOG2E, np.float32(-126.0)), np.float32(126.0))
            whole = np.rint(x)
            f = x - whole
            fraction = ((((((_C7 * f + _C6) * f + _C5) * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _C0
            power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
            y[row, column] = gate / (np.float32(1.0) + fraction * power.view(np.float32)) * up[row, width + column]
