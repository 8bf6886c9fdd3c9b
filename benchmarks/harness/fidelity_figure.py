"""The figure of benchmarks.fidelity: simulated against measured, a mark for each point."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.figure import GREY, MEASURED, SIMULATED, new_figure, write_svg
from benchmarks.harness.records import Record

_COLOURS = {"real": MEASURED, "emulated": SIMULATED}
_MARKS = {False: "o", True: "^"}


def write_figure(path: Path, records: list[Record]) -> None:
    """Two panels: attainment, and mean latency."""
    figure = new_figure(9.6, 4.8)
    panels = figure.subplots(1, 2)
    for panel, name, scale in zip(panels, ("attainment", "latency_ms"), (100.0, 1.0), strict=True):
        for kind, colour in _COLOURS.items():
            for generates, mark in _MARKS.items():
                points = [one for one in records if one["set"] == kind and one["generates"] == generates]
                if points:
                    x, y = ([scale * one[way][name] for one in points] for way in ("simulated", "measured"))
                    label = f"{kind} workers, {'generating' if generates else 'one pass'}"
                    panel.scatter(x, y, 28, color=colour, marker=mark, alpha=0.8, linewidths=0, label=label)
        values = [scale * one[way][name] for one in records for way in ("simulated", "measured")]
        low, high = min(values), max(values)
        panel.plot([low, high], [low, high], color=GREY, linewidth=1)
        panel.grid(alpha=0.3)
        panel.set_aspect("equal", "box")
        panel.spines[["top", "right"]].set_visible(False)
    first, second = panels
    first.set_xlabel("attainment simulated, %")
    first.set_ylabel("attainment measured, %")
    second.set_xscale("log")
    second.set_yscale("log")
    second.set_xlabel("mean latency simulated, ms")
    second.set_ylabel("mean latency measured, ms")
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    write_svg(path, figure)
