"""Who does what in a Locust run. The master (or the only process) makes the demand and keeps all records; each worker
sends its share and reports what came of it (worker.py).

All workers begin at one moment of the wall clock: workers on several machines need clocks that agree.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from locust.runners import STATE_MISSING, MasterRunner

from loadgen.errors import TrafficError
from loadgen.results.record import Record
from loadgen.swarm.arguments import given_arguments
from loadgen.swarm.crew import Crew
from loadgen.swarm.messages import REPORT, SHARE, Report
from loadgen.swarm.prepared import Prepared, prepare
from loadgen.swarm.rows import stage_names
from loadgen.swarm.sender import Sender
from loadgen.swarm.sending import begin_sending
from loadgen.swarm.verdict import tell_verdict

_LEAD_S = 0.3
_WORKER_LEAD_S = 2.0
_DRAWN_PER_S = 200_000
"""Requests that a worker draws in a second, roughly: it does so before it begins."""
log = logging.getLogger("penstock")


class Conductor:
    """On the master, or in the only process."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._prepared: Prepared | None = None
        self._sender: Sender | None = None
        self._crew: Crew | None = None
        self._records: list[Record] = []
        self._start_epoch_s = self._began_s = self._cpu_s = 0.0
        self._end_epoch_s: float | None = None
        self._has_failed = False

    @property
    def senders(self) -> int:
        runner = self._environment.runner
        return max(runner.worker_count, 1) if isinstance(runner, MasterRunner) else 1

    @property
    def is_over(self) -> bool:
        """Every request has come to an end, or none will."""
        if self._has_failed:
            return True
        if self._crew is not None:
            return self._crew.is_over(self._is_lost)
        return self._sender is not None and self._sender.is_stopped

    def check(self) -> None:
        """Before a run without a web form: one line and exit 2 for what is wrong."""
        try:
            prepare(given_arguments(self._environment.parsed_options), self._environment.host)
        except TrafficError as error:
            sys.stderr.write(f"penstock: {error}\n")
            sys.exit(2)

    def start(self) -> None:
        given, host = given_arguments(self._environment.parsed_options), self._environment.host
        self._prepared = self._sender = self._crew = self._end_epoch_s = None
        self._records, self._has_failed = [], False
        self._environment.process_exit_code = None
        try:
            self._prepared = prepare(given, host)
        except TrafficError as error:
            self._fail(str(error))
            return
        self._began_s, self._cpu_s = time.monotonic(), time.process_time()
        if isinstance(self._environment.runner, MasterRunner):
            self._deal(self._prepared, given, host)
        else:
            self._start_epoch_s = time.time() + _LEAD_S
            keep = self._records.append
            self._sender = begin_sending(self._environment, self._prepared, (0, 1), self._start_epoch_s, keep)

    def take_report(self, worker: str, data: Mapping[str, Any]) -> None:
        if REPORT not in data or self._crew is None:
            return
        trouble = self._crew.take(worker, msgspec.msgpack.decode(data[REPORT], type=Report))
        if trouble:
            self._fail(f"worker {worker} cannot send its share: {trouble}")

    def stop(self) -> None:
        """Ends what is still open and says what came of the test."""
        self._end_epoch_s = time.time()
        if self._sender is not None:
            self._sender.stop()
        if self._crew is not None:
            self._crew.warn_of_clocks()
        if self._prepared is not None and not self._has_failed:
            self._environment.process_exit_code = self._verdict(self._prepared)

    def span_s(self, stage: str = "") -> float:
        """For how long it has sent, or sent a stage: what its goodput is of. 0 before, or of no such stage."""
        if self._prepared is None:
            return 0.0
        demand = self._prepared.demand
        elapsed_s = (self._end_epoch_s or time.time()) - self._start_epoch_s
        if not stage:
            return min(max(elapsed_s, 0.0), demand.duration_s)
        one = dict(zip(stage_names(demand.stages), demand.stages, strict=True)).get(stage)
        return 0.0 if one is None else min(max(elapsed_s - one.start_s, 0.0), one.duration_s)

    def _deal(self, prepared: Prepared, given: Mapping[str, str], host: str) -> None:
        runner = self._environment.runner
        workers = sorted(node.id for node in runner.clients.ready + runner.clients.running + runner.clients.spawning)
        self._crew = Crew(time.time_ns(), workers)
        self._records = self._crew.records
        self._start_epoch_s = time.time() + _WORKER_LEAD_S + len(prepared.demand) / _DRAWN_PER_S
        for worker, share in self._crew.shares(host, given, self._start_epoch_s).items():
            runner.send_message(SHARE, msgspec.msgpack.encode(share), worker)

    def _fail(self, why: str) -> None:
        log.error("%s", why)
        self._has_failed = True
        self._environment.process_exit_code = 2

    def _is_lost(self, worker: str) -> bool:
        node = self._environment.runner.clients.get(worker)
        return node is None or node.state == STATE_MISSING

    def _verdict(self, prepared: Prepared) -> int | None:
        cpu_s = time.process_time() - self._cpu_s if self._crew is None else self._crew.cpu_s
        sending = self._crew or self._sender
        return tell_verdict(
            prepared,
            self._records,
            cpu_s / (time.monotonic() - self._began_s),
            None if sending is None else sending.overrun,
            given_arguments(self._environment.parsed_options)["summary"],
        )
