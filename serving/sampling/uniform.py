"""Uniform numbers by counter: one for each (seed, output index), the same wherever and whenever it is asked for.
No state: a sequence that moves to another worker or batch goes on drawing the same numbers.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

# SplitMix64: an odd increment near 2^64 / golden ratio, and the two multipliers of its bit mixer.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_FRACTION_BITS = 53


def uniforms(seed: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.float64]:
    """[n] numbers in [0, 1): the index-th of each seed's stream, all 53 bits of a float's fraction random."""
    state = _mix(np.atleast_1d(seed).astype(np.int64).view(np.uint64) + _STEP)
    counter = np.atleast_1d(index).astype(np.int64).view(np.uint64)
    bits = _mix(state + (counter + np.uint64(1)) * _STEP)
    return (bits >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64) * 2.0**-_FRACTION_BITS


def fresh_seed() -> int:
    """A seed nobody can guess, for a request that names none: 0 to 2^63 - 1."""
    return secrets.randbits(63)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each input bit flips each output bit about half of the time; one to one."""
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    mixed: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed
