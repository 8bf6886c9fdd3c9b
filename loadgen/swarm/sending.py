"""How a process begins to send: its share of a prepared test, with a row in Locust's statistics for each request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loadgen.load_test import make_asks
from loadgen.results.record import Record
from loadgen.swarm.exchange import Stopwatch
from loadgen.swarm.prepared import Prepared
from loadgen.swarm.rows import Rows
from loadgen.swarm.sender import OnRecord, Sender


def begin_sending(
    environment: Any, prepared: Prepared, share: tuple[int, int], start_epoch_s: float, keep: OnRecord
) -> Sender:
    """`share`: which of how many senders this is; together they have no more open than one would."""
    test, target, demand = prepared.test, prepared.target, prepared.demand
    rows = Rows(environment, demand, target.slo, test.goodput)

    def on_record(record: Record) -> None:
        rows.add(record)
        keep(record)

    limits = replace(test.limits, open=-(-test.limits.open // share[1]))
    asks, clock = make_asks(test, target, demand), Stopwatch(start_epoch_s)
    return Sender(test.url, demand, asks, limits, share, clock, on_record)
