"""The page about a load test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadgen.client.run import Outcome
from loadgen.errors import TrafficError
from loadgen.max_rate import MaxRate
from loadgen.report import plots
from loadgen.report.text import max_rate_words, part_rows, percent, spread_rows
from reports import Page


def make_report(outcome: Outcome, found: MaxRate | None, command: str) -> Page:
    """`outcome`: of the test, or of the last one at the largest rate held."""
    summary, demand, columns = outcome.summary, outcome.demand, outcome.columns
    page = Page(f"Load on {summary.url}")
    for reason in summary.invalid_because:
        page.warning(f"Invalid: {reason}.")
    page.facts(
        [
            ("attainment", percent(summary.attainment)),
            (f"worst model: {summary.worst_model[0]}", percent(summary.worst_model[1])),
            ("goodput, requests per second", f"{summary.goodput:.4g}"),
            (f"sent per second ({summary.asked.rate:g} asked)", f"{summary.rate:.4g}"),
            ("refused", str(summary.refused)),
            ("failed", str(summary.failed)),
        ]
    )
    if found is not None:
        page.heading("Largest rate held", f"At {percent(found.at)}: {max_rate_words(found)}.")
        page.figure(plots.share_of_probes(found.probes, found.at))
    page.heading("Times", "Counted from when a request was due, not from when it was sent.")
    _table(page, spread_rows(summary))
    page.heading("Latency over time", "Of answered requests, by when they were due.")
    page.figure(plots.latency_over_time(columns, demand))
    page.heading("What became of requests")
    page.figure(plots.answers_over_time(columns, demand))
    if len(summary.stages) > 1:
        page.heading("Attainment by rate and cv")
        page.figure(plots.attainment_by_rate(summary.stages))
        stages = [(f"rate {part.asked.rate:g}, cv {part.asked.cv}", part) for part in summary.stages]
        _table(page, part_rows("stage", stages))
    page.heading("Models")
    _table(page, part_rows("model", summary.models.items()))
    page.figure(plots.spread_by_model(columns, demand))
    reasons = [*summary.refusals.items(), *summary.failures.items()]
    if reasons:
        page.heading("Why requests were not answered")
        page.table(["reason", "requests"], reasons)
    page.made_by(command, _inputs(outcome))
    return page


def write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise TrafficError(f"{path}: cannot be written ({error.strerror}); give another path") from None


def _table(page: Page, rows: Sequence[Sequence[str]]) -> None:
    """The first row is the header."""
    page.table(rows[0], rows[1:])


def _inputs(outcome: Outcome) -> list[tuple[str, object]]:
    summary, demand = outcome.summary, outcome.demand
    return [
        ("server", summary.url),
        ("requests", summary.requests),
        ("duration", f"{demand.duration_s:g} s"),
        ("rate asked", f"{summary.asked.rate:g} per second"),
        ("cv asked", summary.asked.cv),
        ("seed", summary.seed),
        *((f"goal of {model}", goal) for model, goal in summary.slo.items()),
    ]
