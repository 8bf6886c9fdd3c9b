"""How a total rate is shared among models."""

from collections.abc import Mapping, Sequence

import numpy as np

from loadgen import checks
from loadgen.arrivals import Times
from loadgen.errors import TrafficError


def uniform_split(total_per_s: float, models: int) -> Times:
    """The same rate for every model."""
    return power_law_split(total_per_s, models, 0.0)


def power_law_split(total_per_s: float, models: int, exponent: float) -> Times:
    """Rate of model i in proportion to (i + 1)^-exponent; the rates sum to the total."""
    total = checks.rate(total_per_s, "total_rate")
    count = checks.whole(models, "models", 1, 10_000_000)
    power = checks.within(exponent, "split.power_law", 0, 50)
    weight = np.arange(1, count + 1, dtype=np.float64) ** -power
    rates: Times = total * weight / weight.sum()
    return rates


def share_split(total_per_s: float, models: int, shares: object) -> Times:
    """In proportion to the numbers given, one for each model; they need not sum to 1."""
    total = checks.rate(total_per_s, "total_rate")
    if not isinstance(shares, Sequence) or isinstance(shares, str) or len(shares) != models:
        raise TrafficError(f"split.shares: {checks.shown(shares)}; give {models} numbers, one for each model")
    weight = np.array([checks.within(share, "split.shares", 0, 1e9) for share in shares])
    if not weight.any():
        raise TrafficError("split.shares: all are 0; give a share above 0 to one model at least")
    rates: Times = total * weight / weight.sum()
    return rates


def split(spec: object, total_per_s: float, models: int) -> Times:
    """`spec` is "uniform", {"power_law": exponent}, or {"shares": [a number for each model]}."""
    if spec == "uniform":
        return uniform_split(total_per_s, models)
    if isinstance(spec, Mapping) and list(spec) == ["shares"]:
        return share_split(total_per_s, models, spec["shares"])
    if not isinstance(spec, Mapping) or list(spec) != ["power_law"]:
        known = '"uniform", {"power_law": exponent} or {"shares": [...]}'
        raise TrafficError(f"split: {checks.shown(spec)} is unknown; give {known}")
    return power_law_split(total_per_s, models, checks.number(spec["power_law"], "split.power_law"))
