"""What people type after an option, as values: times, shares, names, one value or one for each model.

200ms   1.5s   2min        a time; without a unit it is in the unit the option names
99%     0.99               a share
3       chat=3,embed=1     one value for all models, or one each
128     128~0.8:16-1024    a length: mean, then its cv, least and most
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from loadgen import checks
from loadgen.errors import TrafficError
from loadgen.tokens import MOST_TOKENS, LogNormal

MS = 1e-3
_UNITS = {"us": 1e-6, "ms": MS, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"([0-9.]+(?:e[-+]?[0-9]+)?)\s*([a-z]*)", re.IGNORECASE)
_LENGTH = re.compile(r"([0-9.]+)(?:~([0-9.]+)(?::([0-9]+)-([0-9]+))?)?")


def number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise TrafficError(f"{where}: {checks.shown(text)} is not a number; give one, such as 20") from None


def whole(text: str, where: str, low: int, high: int) -> int:
    value = int(text) if text.strip().isdecimal() else text
    return checks.whole(value, where, low, high)


def seconds(text: str, where: str, unit_s: float = 1.0, *, from_zero: bool = False) -> float:
    """A time above 0, or from 0; `unit_s` is meant where none is typed."""
    match = _TIME.fullmatch(text.strip())
    factor = None if match is None else _UNITS.get(match[2].lower(), unit_s if not match[2] else None)
    if match is None or factor is None:
        raise TrafficError(f"{where}: {checks.shown(text)} is not a time; give one, such as 200ms or 60s")
    value = number(match[1], where) * factor
    if from_zero:
        return checks.within(value, where, 0, checks.MAX_DURATION_S)
    return checks.positive(value, where, checks.MAX_DURATION_S)


def share(text: str, where: str) -> float:
    """A share above 0, up to 1."""
    typed = text.strip()
    value = number(typed.removesuffix("%"), where) * (0.01 if typed.endswith("%") else 1)
    return checks.positive(value, where, 1)


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def by_model(text: str, models: Sequence[str], where: str) -> dict[str, str]:
    """One text for all models, or NAME=TEXT for some of them, between commas."""
    if "=" not in text:
        return dict.fromkeys(models, text.strip())
    given: dict[str, str] = {}
    for part in names(text):
        # From the right: names of models may hold an equals sign, values never do.
        name, equals, value = part.rpartition("=")
        if not equals or not value.strip():
            raise TrafficError(f"{where}: {checks.shown(part)} lacks a name or a value; give NAME=VALUE for each model")
        given[name.strip()] = value.strip()
    checks.known_models(given, models, where)
    return given


def length(text: str, where: str) -> LogNormal:
    match = _LENGTH.fullmatch(text.strip())
    if match is None:
        raise TrafficError(
            f"{where}: {checks.shown(text)} is not a length; give 128, or 128~0.8:16-1024 (mean~cv:min-max)"
        )
    mean, cv = number(match[1], where), number(match[2] or "0", where)
    try:
        return LogNormal(mean, cv, int(match[3] or 1), int(match[4] or MOST_TOKENS))
    except TrafficError as error:
        raise TrafficError(f"{where}: {error}") from None
