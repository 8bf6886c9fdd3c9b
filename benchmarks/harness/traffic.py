"""Open-loop traffic from this process to a server, for benchmarks of the whole: what loadgen sends, and its records."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from loadgen.client.event_loop import run_on_loop
from loadgen.client.open_loop import drive
from loadgen.demand import make_demand
from loadgen.load_test import LoadTest, look_at, make_asks
from loadgen.results.goals import Goal
from loadgen.results.record import Record
from loadgen.target.url import parse_url
from loadgen.traffic_options import TrafficOptions

PROMPT_TOKENS, OUTPUT_TOKENS = "32", "16"
_FIRST_RATE_PER_S = 8.0


@dataclass(frozen=True)
class Sent:
    records: list[Record]
    goals: tuple[Goal, ...]
    """Of each model."""
    duration_s: float
    lag_p99_s: float

    @property
    def answered(self) -> list[Record]:
        return [record for record in self.records if not record.reason]

    @property
    def answered_share(self) -> float:
        return len(self.answered) / max(len(self.records), 1)

    @property
    def goodput_per_s(self) -> float:
        """Of those that were in time, answered in the second half of the run: the first fills the queues."""
        half = self.duration_s / 2
        return sum(half <= record.done_s < self.duration_s for record in self.met) / half

    @property
    def met(self) -> list[Record]:
        return [record for record in self.answered if self.goals[record.model].is_met(record)]

    def attainment(self, model: int | None = None) -> float:
        mine = [record for record in self.records if model in (None, record.model)]
        met = sum(model in (None, record.model) for record in self.met)
        return met / max(len(mine), 1)


class Traffic:
    """A rate for a time; `stop` ends it early."""

    def __init__(
        self,
        url: str,
        rate_per_s: float,
        duration_s: float,
        seed: int = 0,
        stop: threading.Event | None = None,
        **more: Any,
    ) -> None:
        options = {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS} | more
        traffic = TrafficOptions(rate=f"{rate_per_s}", duration=f"{duration_s}s", seed=seed, **options)
        self._test = LoadTest(url=parse_url(url), traffic=traffic)
        self._stop = stop
        self._duration_s = duration_s

    def run(self) -> Sent:
        test = self._test
        target = look_at(test)
        demand = make_demand(test.traffic, target.models)
        asks = make_asks(test, target, demand)

        async def go() -> Sent:
            stop = asyncio.Event()
            watching = asyncio.create_task(self._watch(stop))
            driven = await drive(test.url, demand, asks, test.limits, None, stop)
            watching.cancel()
            lags = sorted(record.lag_s for record in driven.records) or [0.0]
            return Sent(driven.records, target.slo, self._duration_s, lags[int(0.99 * (len(lags) - 1))])

        return run_on_loop(go)

    async def _watch(self, stop: asyncio.Event) -> None:
        while self._stop is None or not self._stop.is_set():
            await asyncio.sleep(0.1)
        stop.set()


def capacity_per_s(url: str, seconds: float, **more: Any) -> float:
    """The most that is answered in time a second, at rates that double until they are not."""
    rate, best = _FIRST_RATE_PER_S, 0.0
    while True:
        found = Traffic(url, rate, seconds, **more).run().goodput_per_s
        if found < 1.1 * best or found < 0.6 * rate:
            return max(found, best)
        best, rate = max(found, best), 2 * rate
