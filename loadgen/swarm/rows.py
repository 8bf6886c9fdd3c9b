"""A finished request in Locust's statistics, as its tables, charts and CSV files show them.

POST  MODEL     all requests; percentiles are of answered ones; failures by the server's reason
TTFT, TPOT, ITL MODEL    milliseconds, of streamed answers
SLO   MODEL     all requests; a failure is one not answered within its goals: attainment is 1 - failures,
                goodput is requests/s - failures/s
STAGE RATE, CV  the same for each step of a sweep
LAG   sender    from due to sent
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loadgen.demand import Demand
from loadgen.results.goals import Goal
from loadgen.results.record import Record

MISSED = "missed its SLO"


class NotAnswered(Exception):  # noqa: N818  (it says what happened)
    """With the reason, as Locust lists failures."""


class Rows:
    """Only POST counts in Locust's totals: the others would count a request twice."""

    def __init__(self, environment: Any, demand: Demand, slo: Sequence[Goal], goodput: Goal | None) -> None:
        self._environment, self._demand, self._slo = environment, demand, slo
        self._goals = slo if goodput is None else [goodput] * len(slo)

    def add(self, record: Record) -> None:
        demand = self._demand
        name = demand.models[record.model].name
        code = record.status or ""
        self._environment.events.request.fire(
            request_type="POST",
            name=name,
            response_time=None if record.reason else record.latency_s * 1e3,
            response_length=0,
            exception=NotAnswered(f"{code} {record.reason}".strip()) if record.reason else None,
            context={},
        )
        self._log("LAG", "sender", record.lag_s)
        self._log("TTFT", name, record.ttft_s)
        self._log("TPOT", name, record.tpot_s)
        for gap in record.gaps_s:
            self._log("ITL", name, gap)
        took, met = record.latency_s, self._slo[record.model].is_met(record)
        self._judge("SLO", name, took, met)
        if self._goals is not self._slo:
            self._judge("GOODPUT", name, took, self._goals[record.model].is_met(record))
        if len(demand.stages) > 1:
            self._judge("STAGE", demand.stages[record.stage].label, took, met)

    def _log(self, kind: str, name: str, value_s: float) -> None:
        if not math.isnan(value_s):
            self._environment.stats.get(name, kind).log(value_s * 1e3, 0)

    def _judge(self, kind: str, name: str, took_s: float, is_met: bool) -> None:
        entry = self._environment.stats.get(name, kind)
        entry.log(None if math.isnan(took_s) else took_s * 1e3, 0)
        if not is_met:
            entry.log_error(MISSED)
