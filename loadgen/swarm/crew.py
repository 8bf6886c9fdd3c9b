"""The workers of one run, as the master knows them from their reports."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loadgen.overrun import Overrun
from loadgen.results.record import Record
from loadgen.swarm.messages import Report, Share, unpacked

_CLOCKS_S = 0.05
log = logging.getLogger("penstock")


class Crew:
    def __init__(self, run: int, workers: Sequence[str]) -> None:
        """`run` is told to them and by them: what was reported of another is not heard."""
        self._run = run
        self._done = dict.fromkeys(workers, False)
        self._cpu_s: dict[str, float] = {}
        self._off_s: dict[str, float] = {}
        self.records: list[Record] = []
        self.overrun: Overrun | None = None
        """Of the first worker that gave up, for all of them: every worker is asked as much as it was."""

    @property
    def cpu_s(self) -> float:
        return sum(self._cpu_s.values())

    def shares(self, host: str, given: Mapping[str, str], start_epoch_s: float) -> dict[str, Share]:
        of = len(self._done)
        return {
            worker: Share(self._run, index, of, start_epoch_s, host, dict(given))
            for index, worker in enumerate(self._done)
        }

    def take(self, worker: str, report: Report) -> str:
        """The worker's trouble, if it has any."""
        if report.run != self._run or worker not in self._done:
            return ""
        off_s = time.time() - report.at_epoch_s
        self._off_s[worker] = min(self._off_s.get(worker, off_s), off_s, key=abs)
        self._done[worker] |= report.is_done
        self._cpu_s[worker] = report.cpu_s
        if self.overrun is None and report.overrun is not None:
            self.overrun = replace(report.overrun, sent=report.overrun.sent * len(self._done))
        self.records += unpacked(report.records)
        return report.trouble

    def is_over(self, is_lost: Callable[[str], bool]) -> bool:
        """Nobody is left who sends, or what they send is no longer what was asked."""
        return self.overrun is not None or all(done or is_lost(worker) for worker, done in self._done.items())

    def warn_of_clocks(self) -> None:
        """Of the differences that a worker's reports showed the least counts: reports take time too."""
        for worker, off_s in self._off_s.items():
            if abs(off_s) > _CLOCKS_S:
                way, when = ("behind", "late") if off_s > 0 else ("ahead of", "early")
                ms = abs(off_s) * 1e3
                log.warning(
                    "the clock of worker %s is %.0f ms %s this one: it sent so much too %s", worker, ms, way, when
                )
