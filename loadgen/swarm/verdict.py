"""What came of a Locust run: in the log, in the file of --summary, and as an exit code."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadgen.overrun import Overrun
from loadgen.report.text import summary_text
from loadgen.results.columns import columns_of
from loadgen.results.record import Record
from loadgen.results.summary import Summary, summarise
from loadgen.swarm.exchange import INTERRUPTED
from loadgen.swarm.prepared import Prepared

INVALID = 1
log = logging.getLogger("penstock")


def tell_verdict(
    prepared: Prepared, records: Sequence[Record], cpu_share: float, overrun: Overrun | None, path: str
) -> int | None:
    """The exit code, when there is anything to say against the run. `path` of --summary may be empty."""
    if not records:
        log.error("%s", overrun or "no request came to an end")
        return INVALID
    summary = summary_of(prepared, records, cpu_share, overrun)
    log.info("\n%s", summary_text(summary))
    if path:
        try:
            Path(path).write_bytes(msgspec.json.encode(summary) + b"\n")
        except OSError as error:
            log.error("--summary %s: cannot be written (%s)", path, error.strerror)
    return None if summary.valid else INVALID


def summary_of(prepared: Prepared, records: Sequence[Record], cpu_share: float, overrun: Overrun | None) -> Summary:
    """Stopped when requests were still open, it was interrupted, whether or not they have records."""
    is_short = len(records) < len(prepared.demand) or any(record.reason == INTERRUPTED for record in records)
    return summarise(
        columns_of(records),
        prepared.demand,
        prepared.target.slo,
        prepared.test.goodput,
        url=prepared.test.url.base,
        generator_cpu=cpu_share,
        interrupted=is_short and overrun is None,
        overrun=overrun,
    )
