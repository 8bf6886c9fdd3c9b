"""Figures as plotly's JSON: plain dictionaries, so that plotly's Python side is not needed to draw."""

from __future__ import annotations

from typing import Any

import numpy as np

from placement.clocks import Floats
from placement.comparison import BOUND, MEANING, Axis, Comparison
from placement.dispatch import REASONS, SERVED
from placement.outcome import Outcome
from reports import COLOURS, Figure, escaped, shortened

BINS = 120
MOST_MODELS = 60
LABEL = 24
POLICY_COLOURS = dict(zip(("penstock", "alpaserve", "replication", "round-robin", BOUND), COLOURS, strict=False))
LEAST_MISSED = 1e-4
"""So few missed are drawn as none."""
MISSED_TICKS = {
    1.0: "0%",
    0.5: "50%",
    0.1: "90%",
    0.01: "99%",
    0.001: "99.9%",
    LEAST_MISSED: "99.99% or more",
}
_MARGIN = {"l": 60, "r": 20, "t": 20, "b": 50}


def requests_over_time(outcome: Outcome) -> Figure:
    """Stacked bars: requests per second by what became of them, by when they arrived."""
    edges, middle = _bins(outcome)
    data = []
    for status, reason in enumerate(REASONS):
        rows = outcome.status == status
        if rows.any():
            counts = np.histogram(outcome.workload.arrival[rows], edges)[0]
            late = status == SERVED and not outcome.met[rows].all()
            data.append(
                {
                    "type": "bar",
                    "name": "served (some late)" if late else reason,
                    "x": middle.tolist(),
                    "y": (counts / np.diff(edges)).tolist(),
                    "marker": {"color": "#9fb3c4" if status == SERVED else COLOURS[status - 1]},
                }
            )
    layout = _layout("seconds", "requests per second") | {"barmode": "stack", "bargap": 0}
    return {"data": data, "layout": layout}


def utilisation(outcome: Outcome) -> Figure:
    """A row a group: the share of time its stages had work."""
    edges, middle = _bins(outcome)
    table = [_busy_share(outcome, index, edges) for index in range(len(outcome.plan.groups))]
    names = [
        escaped(f"G{index} ({group.devices[0]}…)" if len(group.devices) > 1 else f"G{index} ({group.devices[0]})")
        for index, group in enumerate(outcome.plan.groups)
    ]
    heat = {
        "type": "heatmap",
        "x": middle.tolist(),
        "y": names,
        "z": [np.round(row, 5).tolist() for row in table],
        "zmin": 0,
        "zmax": 1,
        "colorscale": "Viridis",
        "colorbar": {"title": {"text": "busy"}, "tickformat": ".0%"},
        "hovertemplate": "%{y}<br>%{x:.1f} s: %{z:.0%}<extra></extra>",
    }
    layout = _layout("seconds", "")
    layout["yaxis"] |= {"type": "category", "autorange": "reversed"}
    return {"data": [heat], "layout": layout}


def latencies(outcome: Outcome) -> Figure:
    """Percentiles of each model's latency and its SLO; of many models those with the worst attainment."""
    attainment = np.nan_to_num(outcome.model_attainment, nan=2.0)
    chosen = np.sort(np.argsort(attainment, kind="stable")[:MOST_MODELS])
    models = outcome.problem.models
    names = [escaped(shortened(models[index].name, LABEL)) for index in chosen]
    took = outcome.finish - outcome.workload.arrival
    spread = []
    for index in chosen:
        mine = took[outcome.workload.model == index]
        mine = mine[np.isfinite(mine)]
        spread.append(np.percentile(mine, (50, 90, 99)).tolist() if len(mine) else [None] * 3)
    data: list[dict[str, Any]] = [
        _markers(f"p{share}", [row[place] for row in spread], COLOURS[place], symbol)
        for place, (share, symbol) in enumerate(((50, "circle"), (90, "diamond"), (99, "square")))
    ]
    goal = [float(models[index].slo.end_to_end) for index in chosen]
    if np.isfinite(goal).any():
        shown = [value if np.isfinite(value) else None for value in goal]
        data.append(_markers("SLO", shown, COLOURS[4], "line-ew-open"))
        data[-1]["marker"] |= {"size": 14, "line": {"width": 3, "color": COLOURS[4]}}
    layout = _layout("", "seconds")
    layout["xaxis"] |= {"tickvals": list(range(len(names))), "ticktext": names}
    layout["yaxis"] |= {"rangemode": "tozero"}
    return {"data": data, "layout": layout}


def attainment_curves(comparison: Comparison, axis: Axis) -> Figure:
    """A line a policy and rule; dotted ones are shortest-queue. The scale is that of what is missed, so
    that 99% and 99.9% stand as far apart as 90% and 99%."""
    data: list[dict[str, Any]] = []
    for one in comparison.base:
        curve = comparison.curve(axis, one.policy, one.rule)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": f"{one.policy}, {one.rule}",
                "x": [point.value for point in curve],
                "y": [missed(point.attainment) for point in curve],
                "customdata": [[p.attainment, escaped(p.worst_model[0]), p.worst_model[1]] for p in curve],
                "hovertemplate": "%{customdata[0]:.4f} at %{x}<br>worst: %{customdata[1]} %{customdata[2]:.4f}",
                "line": {
                    "width": 4 if one.policy == "penstock" else 2,  # seen beneath another's line
                    "color": POLICY_COLOURS[one.policy],
                    "dash": "solid" if one.rule == "deadline" else "dot",
                },
            }
        )
    layout = _layout(f"{axis}: {MEANING[axis]}", "attainment")
    at = missed(comparison.at)
    goal = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at}
    layout["shapes"] = [goal | {"line": {"color": "#888888", "width": 1, "dash": "dash"}}]
    layout["xaxis"] |= {"tickvals": comparison.values(axis)}
    ticks = {"tickvals": list(MISSED_TICKS), "ticktext": list(MISSED_TICKS.values())}
    layout["yaxis"] |= {"type": "log", "autorange": "reversed"} | ticks
    layout["legend"] = {}
    return {"data": data, "layout": layout}


def missed(attainment: float) -> float:
    """The share missed, on a logarithmic scale that ends at `LEAST_MISSED`."""
    return max(1.0 - attainment, LEAST_MISSED)


def _layout(x: str, y: str) -> dict[str, Any]:
    return {
        "margin": _MARGIN,
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    }


def _markers(name: str, y: list[float | None], colour: str, symbol: str) -> dict[str, Any]:
    x = list(range(len(y)))
    marker = {"color": colour, "symbol": symbol, "size": 8}
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": marker}


def _bins(outcome: Outcome) -> tuple[Floats, Floats]:
    """Edges and middles of the bins of time."""
    end = max(outcome.workload.duration, float(np.nanmax(outcome.finish, initial=0.0)), 1e-3)
    edges = np.linspace(0.0, end, BINS + 1)
    return edges, (edges[1:] + edges[:-1]) / 2


def _busy_share(outcome: Outcome, group: int, edges: Floats) -> Floats:
    """[bins] share of the time that the group's stages had work, averaged over the stages. Of a generating
    request only its first and last step are known: its stages count as busy between them."""
    rows = np.flatnonzero((outcome.group == group) & np.isfinite(outcome.stage_start[:, 0]))
    stages = outcome.plan.groups[group].pp
    share = np.zeros(len(edges) - 1)
    for stage in range(stages):
        start, end = outcome.stage_start[rows, stage], outcome.stage_end[rows, stage]
        order = np.argsort(start, kind="stable")
        until = np.maximum.accumulate(end[order])
        begin = np.maximum(start[order], np.concatenate(([0.0], until[:-1])))
        until = np.maximum(until, begin)
        # Work done by any moment: flat between stretches, rising inside them.
        worked = np.cumsum(until - begin)
        times = np.stack((begin, until), axis=1).ravel()
        done = np.stack((worked - (until - begin), worked), axis=1).ravel()
        if len(times):
            share += np.diff(np.interp(edges, times, done, left=0.0)) / np.diff(edges) / stages
    return share
