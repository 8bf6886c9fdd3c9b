"""The page about a simulated queue: spread of completion and queueing, use over time, who ran when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placement.files import replace_file
from reports import COLOURS, Figure, Page, percent, seconds
from training.arrays import Floats
from training.outcome import Outcome

POINTS = 400
MOST_JOBS = 120
"""Rows of the Gantt chart."""
_MARGIN = {"l": 70, "r": 20, "t": 20, "b": 50}


def write_report(
    path: Path | None, png: Path | None, outcome: Outcome, command: str, inputs: Sequence[tuple[str, object]]
) -> None:
    """One page, nothing outside it needed, and its figures as a picture."""
    page = _page(outcome, command, inputs)
    if path is not None:
        replace_file(path, page.html().encode())
    if png is not None:
        replace_file(png, page.png())


def _page(outcome: Outcome, command: str, inputs: Sequence[tuple[str, object]]) -> Page:
    summary = outcome.summary()
    page = Page(f"{summary['jobs']} jobs under {outcome.policy}")
    page.facts(
        [
            ("mean completion time", seconds(summary["mean_jct"])),
            ("mean queueing", seconds(summary["mean_queue"])),
            ("p99 completion", seconds(summary["p99_jct"])),
            ("makespan", seconds(summary["makespan"])),
            ("use of the devices", percent(summary["utilization"])),
            ("preemptions", str(summary["preemptions"])),
        ]
    )
    page.heading("Completion and queueing times", "The share of jobs that took no longer; the axis is logarithmic.")
    page.figure(_distribution({"completion": outcome.jct, "queueing": outcome.queue}))
    page.heading("Devices and queue over time")
    page.figure(_over_time(outcome))
    page.heading("Who ran when", f"The first {MOST_JOBS} jobs; a bar is a run without a change of workers.")
    page.figure(_gantt(outcome), height=120 + 8 * min(len(outcome.ids), MOST_JOBS))
    page.heading("All figures")
    page.table(["figure", "value"], [[name, "" if value is None else value] for name, value in summary.items()])
    page.made_by(command, inputs)
    return page


def _distribution(columns: dict[str, Floats]) -> Figure:
    data = []
    for (name, values), colour in zip(columns.items(), COLOURS, strict=False):
        shares = np.linspace(0, 1, POINTS)
        points = np.maximum(np.quantile(values, shares), 1.0)
        data.append(_line(name, points, shares, colour))
    return {"data": data, "layout": _layout("seconds (at least 1)", "share of jobs", {"type": "log"})}


def _over_time(outcome: Outcome) -> Figure:
    time = np.array(outcome.series.time)
    at = np.unique(np.linspace(0, len(time) - 1, min(POINTS, len(time))).astype(np.int64))
    columns = {"devices in use": outcome.series.busy, "jobs waiting": outcome.series.queued}
    data = [
        _line(name, time[at], np.array(values, np.float64)[at], colour) | {"line": {"shape": "hv", "color": colour}}
        for (name, values), colour in zip(columns.items(), COLOURS, strict=False)
    ]
    return {"data": data, "layout": _layout("seconds", "devices, jobs")}


def _gantt(outcome: Outcome) -> Figure:
    spans = [span for span in outcome.series.spans if span.row < MOST_JOBS]
    bar: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "base": [span.start for span in spans],
        "x": [span.end - span.start for span in spans],
        "y": [span.row for span in spans],
        "marker": {"color": [span.workers for span in spans], "colorscale": "Viridis", "showscale": True},
        "hovertext": [f"{span.workers} workers" for span in spans],
    }
    return {"data": [bar], "layout": _layout("seconds", "job") | {"yaxis": {"autorange": "reversed"}, "bargap": 0.1}}


def _line(name: str, x: Floats, y: Floats, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x.tolist(),
        "y": y.tolist(),
        "line": {"color": colour},
    }


def _layout(x: str, y: str, xaxis: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"margin": _MARGIN, "xaxis": {"title": {"text": x}, **(xaxis or {})}, "yaxis": {"title": {"text": y}}}
