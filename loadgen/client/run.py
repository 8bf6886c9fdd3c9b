"""One run of a load test on asyncio, from its traffic to its summary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.client.event_loop import interrupting, run_on_loop
from loadgen.client.open_loop import OnProgress, drive
from loadgen.demand import Demand, make_demand
from loadgen.load_test import LoadTest, Target, make_asks
from loadgen.results.columns import Columns, columns_of
from loadgen.results.summary import Summary, summarise
from loadgen.traffic_options import TrafficOptions


@dataclass(frozen=True, eq=False)
class Outcome:
    demand: Demand
    columns: Columns
    summary: Summary
    interrupted: bool = False


def run_once(
    test: LoadTest, target: Target, traffic: TrafficOptions, on_progress: Callable[[Demand], OnProgress] | None = None
) -> Outcome:
    """One run with this traffic. An interrupt ends it early; what came until then is judged, and marked."""
    demand = make_demand(traffic, target.models)
    asks = make_asks(test, target, demand)
    watch = None if on_progress is None else on_progress(demand)

    async def run() -> Outcome:
        stop = asyncio.Event()
        with interrupting(stop):
            driven = await drive(test.url, demand, asks, test.limits, watch, stop)
        columns = columns_of(driven.records)
        summary = summarise(
            columns,
            demand,
            target.slo,
            test.goodput,
            url=test.url.base,
            generator_cpu=driven.cpu_share,
            interrupted=driven.interrupted,
            overrun=driven.overrun,
        )
        return Outcome(demand, columns, summary, driven.interrupted)

    return run_on_loop(run)
