"""The figure of benchmarks.two_models: mean latency of both placements, measured and simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness.figure import MEASURED, SIMULATED, new_figure, write_svg

_PALE = "#93c5fd"


def write_figure(path: Path, report: dict[str, Any]) -> None:
    """A panel for each kind of workers; for each case two bars, and a line on each where the simulator has it."""
    kinds = report["workers"]
    figure = new_figure(5.2 * len(kinds), 4.2)
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    for panel, (kind, found) in zip(panels, kinds.items(), strict=True):
        for place, one in enumerate(found["cases"].values()):
            for side, (name, colour) in enumerate((("A", _PALE), ("B", MEASURED))):
                x = place + 0.38 * (side - 0.5)
                means = {way: one["placements"][name][way]["latency_ms"] for way in ("measured", "simulated")}
                first = place == 0
                label = {"A": "A: a model on each device", "B": "B: both models over both devices"}[name]
                panel.bar(x, means["measured"], 0.36, color=colour, label=label if first else None)
                shown = "simulated" if first and side == 0 else None
                panel.plot([x - 0.18, x + 0.18], [means["simulated"]] * 2, color=SIMULATED, linewidth=2.5, label=shown)
            top = max(one["placements"][name][way]["latency_ms"] for name in "AB" for way in ("measured", "simulated"))
            gain = one["gain"]
            text = f"{gain['measured']:.2f}x\n(simulated {gain['simulated']:.2f}x)"
            panel.annotate(text, (place, top), (0, 4), textcoords="offset points", ha="center", fontsize=8)
        cases = list(found["cases"])
        panel.set_xticks(range(len(cases)), cases)
        panel.margins(y=0.18)
        panel.set_title(f"{kind} workers, a pass of {found['pass_ms']:.0f} ms", fontsize=10)
        panel.set_ylabel("mean latency, ms")
        panel.grid(axis="y", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    write_svg(path, figure)
