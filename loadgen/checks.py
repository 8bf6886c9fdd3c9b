"""Checks of single values that came from a user. Each raises TrafficError naming the field (`where`)."""

import math
import numbers
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadgen.errors import TrafficError

MAX_REQUESTS = 50_000_000
MAX_DURATION_S = 1e9
# Gaps are whole nanoseconds; at this rate the mean gap is still 100 of them.
MAX_RATE_PER_S = 1e7
# Below a gamma shape of 1e-6 the sampler's own rounding shows.
MAX_CV = 1e3


def shown(value: object) -> str:
    """`value` for a message: short, and on one line."""
    return reprlib.repr(value).replace("\n", " ")


def number(value: object, where: str, wanted: str = "a finite number") -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TrafficError(f"{where}: {shown(value)} is not a number; give {wanted}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise TrafficError(f"{where}: {shown(value)} is not finite; give {wanted}")
    return result


def within(value: object, where: str, low: float, high: float) -> float:
    wanted = f"a number from {low:g} to {high:g}"
    result = number(value, where, wanted)
    if not low <= result <= high:
        raise TrafficError(f"{where}: {shown(value)} is out of range; give {wanted}")
    return result


def positive(value: object, where: str, high: float = math.inf) -> float:
    wanted = "a number above 0" if math.isinf(high) else f"a number above 0, at most {high:g}"
    result = number(value, where, wanted)
    if not 0 < result <= high:
        raise TrafficError(f"{where}: {shown(value)} is out of range; give {wanted}")
    return result


def whole(value: object, where: str, low: int, high: int) -> int:
    wanted = f"a whole number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TrafficError(f"{where}: {shown(value)} is not a whole number; give {wanted}")
    if not low <= int(value) <= high:
        raise TrafficError(f"{where}: {shown(value)} is out of range; give {wanted}")
    return int(value)


def rate(value: object, where: str = "rate") -> float:
    """Requests per second."""
    return within(value, where, 0, MAX_RATE_PER_S)


def cv(value: object, where: str = "cv") -> float:
    return positive(value, where, MAX_CV)


def duration(value: object, where: str = "duration") -> float:
    """Seconds."""
    return positive(value, where, MAX_DURATION_S)


def not_absurd(expected: float, where: str) -> None:
    if expected > MAX_REQUESTS:
        raise TrafficError(
            f"{where}: about {expected:.3g} requests expected; lower the rate or the duration "
            f"to at most {MAX_REQUESTS:,} requests"
        )


def path(value: object, where: str, folder: Path) -> Path:
    """A path of a file, relative to `folder`."""
    if not isinstance(value, str | Path) or not str(value):
        raise TrafficError(f"{where}: {shown(value)} is not a path; give the path of a file")
    return folder / value


def mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TrafficError(f"{where}: {shown(value)} is not a mapping; give names with values")
    for key in value:
        if not isinstance(key, str):
            raise TrafficError(f"{where}: key {shown(key)} is not a string; give names with values")
    return value


def known_keys(value: Mapping[str, object], allowed: Sequence[str], where: str) -> None:
    for key in value:
        if key not in allowed:
            prefix = f"{where}." if where else ""
            raise TrafficError(f"{prefix}{key}: unknown key; known here: {', '.join(sorted(allowed))}")


def known_models(value: Mapping[str, object], models: Sequence[str], where: str) -> None:
    known = set(models)
    for name in value:
        if name not in known:
            raise TrafficError(f"{where}.{name}: no such model; the models are {_few(models)}")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
