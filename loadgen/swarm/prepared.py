"""A test that is ready to be sent: the options understood, the server looked at, the demand drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.demand import Demand, make_demand
from loadgen.errors import TrafficError
from loadgen.load_test import LoadTest, Target, look_at
from loadgen.swarm.arguments import load_test_from


@dataclass(frozen=True, eq=False)
class Prepared:
    test: LoadTest
    target: Target
    demand: Demand


def prepare(given: Mapping[str, str], host: str | None) -> Prepared:
    """TrafficError when something is wrong."""
    if not host:
        raise TrafficError("--host: missing; give the endpoint, such as http://127.0.0.1:8000")
    test = load_test_from(given, host)
    target = look_at(test)
    return Prepared(test, target, make_demand(test.traffic, target.models))
