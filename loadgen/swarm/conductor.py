"""Who does what in a Locust run. The master (or the only process) makes the demand and keeps all records; each worker
sends its share and reports what came of it.

All workers begin at one moment of the wall clock: workers on several machines need clocks that agree.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from loadgen.demand import Demand, make_demand
from loadgen.errors import TrafficError
from loadgen.load_test import LoadTest, Target, look_at, make_asks
from loadgen.report.text import summary_text
from loadgen.results.columns import columns_of
from loadgen.results.record import Record
from loadgen.results.summary import Summary, summarise
from loadgen.swarm.arguments import given_arguments, load_test_from
from loadgen.swarm.exchange import Stopwatch
from loadgen.swarm.rows import Rows
from loadgen.swarm.sender import Sender

MESSAGE = "penstock_share"
_LEAD_S = 0.3
_WORKER_LEAD_S = 2.0
_DRAWN_PER_S = 200_000
"""Requests that a worker draws in a second, roughly: it does so before it begins."""
_KEPT = tuple(name for name in Record.__dataclass_fields__ if name != "gaps_s")
log = logging.getLogger("penstock")


@dataclass(frozen=True, eq=False)
class Prepared:
    test: LoadTest
    target: Target
    demand: Demand


def prepare(given: Mapping[str, str], host: str | None) -> Prepared:
    """Looks at the server and draws what is to be sent; TrafficError when something is wrong."""
    if not host:
        raise TrafficError("--host: missing; give the endpoint, such as http://127.0.0.1:8000")
    test = load_test_from(given, host)
    target = look_at(test)
    return Prepared(test, target, make_demand(test.traffic, target.models))


class Conductor:
    """One for each process of Locust."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._prepared: Prepared | None = None
        self._sender: Sender | None = None
        self._records: list[Record] = []
        """On the master all, elsewhere those not yet reported."""
        self._done: dict[str, bool] = {}
        self._worker_cpu_s: dict[str, float] = {}
        self._cpu_s = self._began_s = 0.0
        self.has_failed = False
        self._trouble = ""
        """On a worker: why it cannot send its share."""

    @property
    def senders(self) -> int:
        runner = self._environment.runner
        return max(runner.worker_count, 1) if isinstance(runner, MasterRunner) else 1

    @property
    def is_over(self) -> bool:
        """Every request has come to an end, or none will."""
        if self.has_failed:
            return True
        if isinstance(self._environment.runner, MasterRunner):
            return bool(self._done) and all(done or self._is_lost(worker) for worker, done in self._done.items())
        return self._sender is not None and self._sender.is_stopped

    def check(self) -> None:
        """Before a run without a web form: one line and exit 2 for what is wrong."""
        try:
            prepare(given_arguments(self._environment.parsed_options), self._environment.host)
        except TrafficError as error:
            sys.stderr.write(f"penstock: {error}\n")
            sys.exit(2)

    def start(self) -> None:
        """On the master, or in the only process."""
        runner, host = self._environment.runner, self._environment.host
        given = given_arguments(self._environment.parsed_options)
        self._records, self._done, self._worker_cpu_s = [], {}, {}
        try:
            self._prepared = prepare(given, host)
        except TrafficError as error:
            log.error("%s", error)
            self.has_failed = True
            return
        self.has_failed = False
        self._began_s = time.monotonic()
        if not isinstance(runner, MasterRunner):
            self._send(self._prepared, (0, 1), time.time() + _LEAD_S)
            return
        workers = sorted(node.id for node in runner.clients.ready + runner.clients.running + runner.clients.spawning)
        start = time.time() + _WORKER_LEAD_S + len(self._prepared.demand) / _DRAWN_PER_S
        self._done = dict.fromkeys(workers, False)
        for index, worker in enumerate(workers):
            share = {"index": index, "of": len(workers), "start": start, "host": host, "given": given}
            runner.send_message(MESSAGE, share, worker)

    def take_share(self, data: Mapping[str, Any]) -> None:
        """On a worker."""
        self._trouble = ""
        try:
            self._send(prepare(data["given"], data["host"]), (data["index"], data["of"]), data["start"])
        except TrafficError as error:
            log.error("%s", error)
            self._trouble = str(error)

    def report(self, data: dict[str, Any]) -> None:
        """What a worker tells the master."""
        if self._trouble:
            data["penstock"] = {"trouble": self._trouble}
        elif self._sender is not None:
            # Asked before the records are taken: those of the last request are then among them.
            is_done = self._sender.is_done
            records, self._records = self._records, []
            rows = [[getattr(record, name) for name in _KEPT] for record in records]
            data["penstock"] = {"done": is_done, "records": rows, "cpu_s": time.process_time() - self._cpu_s}

    def take_report(self, worker: str, data: Mapping[str, Any]) -> None:
        told = data.get("penstock")
        if told is not None and "trouble" in told:
            log.error("worker %s cannot send its share: %s", worker, told["trouble"])
            self.has_failed = True
            self._environment.process_exit_code = 2
        elif told is not None and worker in self._done:
            self._records += [Record(**dict(zip(_KEPT, row, strict=True))) for row in told["records"]]
            self._done[worker] |= told["done"]
            self._worker_cpu_s[worker] = told["cpu_s"]

    def stop(self) -> None:
        """Ends what is still open; where all records are, says what came of the test."""
        if self._sender is not None:
            self._sender.stop()
        is_worker = isinstance(self._environment.runner, WorkerRunner)
        if self._prepared is not None and self._records and not is_worker and not self.has_failed:
            self._tell(self._summary(self._prepared))

    def _send(self, prepared: Prepared, share: tuple[int, int], start_epoch_s: float) -> None:
        test, target, demand = prepared.test, prepared.target, prepared.demand
        self._cpu_s = time.process_time()
        self._records = []
        rows = Rows(self._environment, demand, target.slo, test.goodput)

        def on_record(record: Record) -> None:
            rows.add(record)
            self._records.append(record)

        asks, clock = make_asks(test, target, demand), Stopwatch(start_epoch_s)
        self._sender = Sender(test.url, demand, asks, test.limits, share, clock, on_record)

    def _is_lost(self, worker: str) -> bool:
        node = self._environment.runner.clients.get(worker)
        return node is None or node.state == STATE_MISSING

    def _summary(self, prepared: Prepared) -> Summary:
        cpu_s = sum(self._worker_cpu_s.values()) or time.process_time() - self._cpu_s
        return summarise(
            columns_of(self._records),
            prepared.demand,
            prepared.target.slo,
            prepared.test.goodput,
            url=prepared.test.url.base,
            generator_cpu=cpu_s / (time.monotonic() - self._began_s),
            interrupted=len(self._records) < len(prepared.demand),
        )

    def _tell(self, summary: Summary) -> None:
        log.info("\n%s", summary_text(summary))
        if not summary.valid:
            self._environment.process_exit_code = 1
        path = given_arguments(self._environment.parsed_options)["summary"]
        if path:
            try:
                Path(path).write_bytes(msgspec.json.encode(summary) + b"\n")
            except OSError as error:
                log.error("--summary %s: cannot be written (%s)", path, error.strerror)
