"""The jobs that finished last, kept as they end: a decision looks at thousands of them and reads none again."""

from __future__ import annotations

from collections.abc import Iterable

from training.queue.record import Record

HISTORY = 4096
"""Ended jobs that policies and guesses see: as many as any policy looks at."""


class Past:
    """At most `most` jobs, those that ended first forgotten first."""

    def __init__(self, most: int = HISTORY) -> None:
        self._most = most
        self._jobs: dict[str, Record] = {}

    def add(self, jobs: Iterable[Record]) -> None:
        """Of these the ones that finished; whoever is known stays where it is."""
        finished = [record for record in jobs if _counts(record) and record.id not in self._jobs]
        self._jobs |= {record.id: record for record in sorted(finished, key=lambda record: record.ended or 0.0)}
        for oldest in list(self._jobs)[: max(0, len(self._jobs) - self._most)]:
            del self._jobs[oldest]

    def forget(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            self._jobs.pop(job, None)

    @property
    def jobs(self) -> list[Record]:
        """In the order in which they ended."""
        return list(self._jobs.values())


def _counts(record: Record) -> bool:
    return record.state == "finished" and not record.fault
