"""How a total rate is shared among models."""

from collections.abc import Mapping

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


def split(spec: object, total_per_s: float, models: int) -> Times:
    """`spec` is "uniform" or {"power_law": exponent}."""
    if spec == "uniform":
        return uniform_split(total_per_s, models)
    if not isinstance(spec, Mapping) or list(spec) != ["power_law"]:
        raise TrafficError(f'split: {checks.shown(spec)} is unknown; give "uniform" or {{"power_law": exponent}}')
    return power_law_split(total_per_s, models, checks.number(spec["power_law"], "split.power_law"))
