"""Figures of a load test as plotly's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loadgen.demand import Demand
from loadgen.max_rate import Probe
from loadgen.results.columns import Columns, Floats
from loadgen.results.figures import Part
from reports import COLOURS, Figure, escaped

_BINS = 120
_MOST_POINTS = 4000


def latency_over_time(columns: Columns, demand: Demand) -> Figure:
    """By when requests were due: some of them as points, and percentiles of bins as lines."""
    edges, middle = _bins(demand)
    rows = np.flatnonzero(columns.answered)
    shown = rows[:: max(rows.size // _MOST_POINTS, 1)]
    points = {
        "type": "scattergl", "mode": "markers", "name": "a request", "x": columns.due_s[shown].tolist(),
        "y": (columns.latency_s[shown] * 1e3).tolist(), "marker": {"size": 3, "color": COLOURS[6], "opacity": 0.5},
    }  # fmt: skip
    place = np.digitize(columns.due_s[rows], edges) - 1
    data: list[dict[str, Any]] = [points]
    for at, share in enumerate((50, 99)):
        values = [_percentile(columns.latency_s[rows[place == b]], share) for b in range(middle.size)]
        data.append(_line(f"p{share}", middle.tolist(), values, COLOURS[(0, 4)[at]]))
    return {"data": data, "layout": _layout("seconds", "latency, ms")}


def answers_over_time(columns: Columns, demand: Demand) -> Figure:
    """Stacked bars: requests a second by what became of them, by when they were due."""
    edges, middle = _bins(demand)
    kinds = (("answered", columns.answered), ("refused", columns.refused), ("failed", columns.failed))
    data = [
        {
            "type": "bar", "name": name, "x": middle.tolist(), "marker": {"color": colour},
            "y": (np.histogram(columns.due_s[mask], edges)[0] / np.diff(edges)).tolist(),
        }
        for (name, mask), colour in zip(kinds, ("#9fb3c4", COLOURS[1], COLOURS[4]), strict=True)
        if mask.any()
    ]  # fmt: skip
    return {"data": data, "layout": _layout("seconds", "requests per second") | {"barmode": "stack", "bargap": 0}}


def spread_by_model(columns: Columns, demand: Demand) -> Figure:
    """Share of each model's answered requests that took at most so long."""
    data = []
    for index, model in enumerate(demand.models):
        took = np.sort(columns.latency_s[columns.answered & (columns.model == index)]) * 1e3
        if took.size:
            at = np.unique(np.linspace(0, took.size - 1, 400).astype(int))
            share = ((at + 1) / took.size).tolist()
            data.append(_line(escaped(model.name), took[at].tolist(), share, COLOURS[index % len(COLOURS)]))
    layout = _layout("latency, ms", "share of answered requests")
    layout["xaxis"]["type"] = "log"
    return {"data": data, "layout": layout}


def attainment_by_rate(stages: Sequence[Part]) -> Figure:
    """A line a cv, a point a stage."""
    data = []
    for at, cv in enumerate(dict.fromkeys(stage.asked.cv for stage in stages)):
        mine = sorted((stage for stage in stages if stage.asked.cv == cv), key=lambda stage: stage.asked.rate)
        x, y = [stage.asked.rate for stage in mine], [stage.attainment for stage in mine]
        data.append(_line(f"cv {escaped(cv)}", x, y, COLOURS[at % len(COLOURS)]) | {"mode": "lines+markers"})
    layout = _layout("requests per second asked", "attainment")
    layout["yaxis"]["tickformat"] = ".1%"
    return {"data": data, "layout": layout}


def share_of_probes(probes: Sequence[Probe], at: float) -> Figure:
    rows = sorted(probes, key=lambda probe: probe.rate)
    rates = [probe.rate for probe in rows]
    data = [
        _line("within goals", rates, [probe.share for probe in rows], COLOURS[0]) | {"mode": "lines+markers"},
        _line("wanted", [rates[0], rates[-1]], [at, at], COLOURS[6]),
    ]
    layout = _layout("requests per second asked", "share of requests within goals")
    layout["yaxis"]["tickformat"] = ".1%"
    return {"data": data, "layout": layout}


def _bins(demand: Demand) -> tuple[Floats, Floats]:
    edges = np.linspace(0, demand.duration_s, _BINS + 1)
    return edges, (edges[:-1] + edges[1:]) / 2


def _percentile(values: Floats, share: int) -> float | None:
    return float(np.percentile(values, share)) * 1e3 if values.size else None


def _line(name: str, x: Sequence[float], y: Sequence[float | None], colour: str) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": {"color": colour, "width": 2}}


def _layout(x: str, y: str) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}, "rangemode": "tozero"},
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "legend": {"orientation": "h", "y": 1.12},
    }
