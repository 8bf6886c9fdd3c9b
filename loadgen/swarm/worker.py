"""In a worker process of Locust: sends its share of each run and reports what came of it."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from loadgen.errors import TrafficError
from loadgen.results.record import Record
from loadgen.swarm.messages import REPORT, Report, Share, packed
from loadgen.swarm.prepared import prepare
from loadgen.swarm.sender import Sender
from loadgen.swarm.sending import begin_sending

log = logging.getLogger("penstock")


class Worker:
    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._run = 0
        self._sender: Sender | None = None
        self._records: list[Record] = []
        """Not yet reported."""
        self._trouble = ""
        self._cpu_s = 0.0

    def take_share(self, told: bytes) -> None:
        """What is left of the run before is given up: from here on reports are of this one."""
        share = msgspec.msgpack.decode(told, type=Share)
        self.stop()
        self._run, self._sender, self._records, self._trouble = share.run, None, [], ""
        try:
            prepared = prepare(share.given, share.host)
        except TrafficError as error:
            log.error("%s", error)
            self._trouble = str(error)
            return
        self._cpu_s = time.process_time()
        of = (share.index, share.of)
        self._sender = begin_sending(self._environment, prepared, of, share.start_epoch_s, self._ended)

    def report(self, data: dict[str, Any]) -> None:
        """Adds to what Locust reports to the master."""
        if self._run:
            data[REPORT] = msgspec.msgpack.encode(self._report())

    def stop(self) -> None:
        if self._sender is not None:
            self._sender.stop()

    def _report(self) -> Report:
        trouble, self._trouble = self._trouble, ""
        # Asked before the records are taken: those of the last request are then among them.
        is_done = self._sender is not None and self._sender.is_done
        records, self._records = self._records, []
        return Report(
            run=self._run,
            at_epoch_s=time.time(),
            trouble=trouble,
            is_done=is_done,
            overrun=None if self._sender is None else self._sender.overrun,
            cpu_s=0.0 if self._sender is None else time.process_time() - self._cpu_s,
            records=packed(records),
        )

    def _ended(self, record: Record) -> None:
        self._records.append(record)
