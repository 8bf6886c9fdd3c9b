"""Numbers with units as people write them in YAML: "200ms", "16GiB", "99%". Files we write hold plain numbers."""

from __future__ import annotations

import math
import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
LARGEST = 1e300
"""YAML's whole numbers have no end, a float's range has."""
_QUANTITY = re.compile(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z%]*)\s*")


class Seconds(float):
    """A time; "200ms" in YAML."""


class Bytes(int):
    """An amount of memory; "16GiB" in YAML."""


class Share(float):
    """A share of one; "99%" in YAML."""


def parse_seconds(value: object) -> Seconds:
    return Seconds(_parse(value, _SECONDS, "a time such as 0.2 or '200ms'"))


def parse_bytes(value: object) -> Bytes:
    return Bytes(_parse(value, _BYTES, "an amount of memory such as 16000000000 or '16GiB'"))


def parse_share(value: object) -> Share:
    return Share(_parse(value, {"%": 0.01}, "a share such as 0.99 or '99%'"))


def _parse(value: object, units: dict[str, float] | dict[str, int], expected: str) -> float:
    number: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value) if abs(value) < LARGEST else math.inf
    elif isinstance(value, str) and (match := _QUANTITY.fullmatch(value)):
        unit = match.group(2)
        if unit == "" or unit in units:
            try:
                number = float(match.group(1)) * (units[unit] if unit else 1)
            except ValueError:
                number = None
    if number is None or not math.isfinite(number) or number < 0:
        raise ValueError(f"expected {expected}, got {value!r}")
    return number
