"""What the compiled attention kernels share: how they are compiled, the paged cache as they see it, powers of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

import placement.compiled  # noqa: F401  (decides where compiled code is kept)
from serving.attention.cpu_vectors import VECTOR_BYTES

F = TypeVar("F", bound=Callable[..., object])

BROKEN = -1  # a block or slot that the cache does not have
LOG2E = 1.4426950408889634

_OPTIONS: Any = {"nogil": True, "fastmath": True, "error_model": "numpy", "boundscheck": False}
_APART = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_INNER = _APART | {"forceinline": True, "_nrt": False}

# 2**f for f in -0.5..0.5, to 7.5e-8 of its value.
_POLYNOMIAL = (1.00000007, 0.693146967, 0.240221197, 0.0555071328, 0.00967554154, 0.00132764717)
_C0, _C1, _C2, _C3, _C4, _C5 = (np.float32(c) for c in _POLYNOMIAL)


def entry_point(function: F) -> F:
    return cast(F, numba.njit(cache=True, **_OPTIONS)(function))


def inner(function: F) -> F:
    return cast(F, numba.njit(**_INNER)(function))


def apart(function: F) -> F:
    """For what is large, called once a sequence, and may allocate."""
    return cast(F, numba.njit(**_APART)(function))


class Cache(NamedTuple):
    """Both caches of a layer: their addresses, blocks [kv_heads, block_size, head_dim], and where sequences lie."""

    keys: int
    values: int
    blocks: int
    kv_heads: int
    block_size: int
    tables: Any


@inner
def first_seen(position: Any, window: Any) -> Any:
    """The first position that the query at this one sees."""
    return max(0, position + 1 - window) if window > 0 else 0


@inner
def holds(cache: Any, s: int, first: int, stop: int) -> bool:
    """Whether the table and the cache have every block of positions first..stop."""
    last = (stop + cache.block_size - 1) // cache.block_size
    if stop < 1 or last > cache.tables.shape[1]:
        return False
    for n in range(first // cache.block_size, last):
        if cache.tables[s, n] < 0 or cache.tables[s, n] >= cache.blocks:
            return False
    return True


@inner
def block_address(base: Any, cache: Any, s: int, n: int, vectors: Any) -> Any:
    """Of a sequence's n-th block, of keys or of values."""
    block_bytes = cache.kv_heads * cache.block_size * VECTOR_BYTES * len(vectors)
    return base + np.int64(cache.tables[s, n]) * block_bytes


@inner
def exp2(x: Any) -> Any:
    x = max(x, np.float32(-126.0))
    whole = np.rint(x)
    f = x - whole
    fraction = ((((_C5 * f + _C4) * f + _C3) * f + _C2) * f + _C1) * f + _C0
    power = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23))
    return fraction * power.view(np.float32)
