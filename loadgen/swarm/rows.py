"""A finished request in Locust's statistics, as its tables, charts and CSV files show them.

POST  MODEL     all requests; percentiles are of answered ones; failures by the server's reason
TTFT, TPOT, ITL MODEL    milliseconds, of streamed answers
SLO   MODEL     all requests; a failure is one not answered within its goals: attainment is 1 - failures,
                goodput is requests/s - failures/s
GOODPUT MODEL   the same by the goals of --goodput, when they are given
STAGE, GOODPUT NUMBER: RATE, CV    the same for each step of a sweep
LAG   sender    from due to sent
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from loadgen.demand import Demand
from loadgen.results.goals import Goal
from loadgen.results.record import Record
from loadgen.stages import Stage

MISSED = "missed its SLO"


def stage_names(stages: Sequence[Stage]) -> list[str]:
    """Of one length, so that Locust sorts them as they come; steps of the same rate and cv keep apart."""
    digits = len(str(len(stages)))
    return [f"{at:0{digits}}: {stage.label}" for at, stage in enumerate(stages, 1)]


class NotAnswered(Exception):  # noqa: N818  (it says what happened)
    """With the reason, as Locust lists failures."""


class Rows:
    """Only POST counts in Locust's totals: the others would count a request twice."""

    def __init__(self, environment: Any, demand: Demand, slo: Sequence[Goal], goodput: Goal | None) -> None:
        self._environment, self._demand, self._slo = environment, demand, slo
        self._goodput = goodput
        self._stages = stage_names(demand.stages) if len(demand.stages) > 1 else []

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
        self._judge("SLO", name, record, self._slo[record.model])
        if self._stages:
            self._judge("STAGE", self._stages[record.stage], record, self._slo[record.model])
        if self._goodput is not None:
            for part in (name, *self._stages[record.stage : record.stage + 1]):
                self._judge("GOODPUT", part, record, self._goodput)

    def _log(self, kind: str, name: str, value_s: float) -> None:
        if not math.isnan(value_s):
            self._environment.stats.get(name, kind).log(value_s * 1e3, 0)

    def _judge(self, kind: str, name: str, record: Record, goal: Goal) -> None:
        entry, took_s = self._environment.stats.get(name, kind), record.latency_s
        entry.log(None if math.isnan(took_s) else took_s * 1e3, 0)
        if not goal.is_met(record):
            entry.log_error(MISSED)
