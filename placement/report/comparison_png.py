"""The curves of a comparison as a PNG, for places that show no HTML."""

from __future__ import annotations

import io
from pathlib import Path

from placement.comparison import MEANING, Comparison
from placement.files import replace_file
from placement.report.figures import MISSED_TICKS, POLICY_COLOURS, missed


def write_comparison_png(path: Path, comparison: Comparison) -> None:
    """One panel an axis; solid lines are the deadline rule, dotted ones shortest-queue."""
    # Not pyplot: it keeps figures in a global list and may look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    axes = comparison.axes
    columns = min(len(axes), 2) or 1
    rows = -(-len(axes) // columns) or 1
    figure = Figure(figsize=(6.4 * columns, 4.0 * rows + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    for number, axis in enumerate(axes):
        panel = figure.add_subplot(rows, columns, number + 1)
        panel.axhline(missed(comparison.at), color="#888888", linewidth=1, linestyle="--")
        for one in comparison.base:
            curve = comparison.curve(axis, one.policy, one.rule)
            panel.plot(
                [point.value for point in curve],
                [missed(point.attainment) for point in curve],
                color=POLICY_COLOURS[one.policy],
                linestyle="-" if one.rule == "deadline" else ":",
                linewidth=3 if one.policy == "penstock" else 1.5,  # seen beneath another's line
                marker="o",
                markersize=4,
                label=f"{one.policy}, {one.rule}",
            )
        panel.set_yscale("log")
        panel.set_yticks(list(MISSED_TICKS), list(MISSED_TICKS.values()))
        panel.minorticks_off()
        panel.invert_yaxis()
        panel.set_title(axis)
        panel.set_xlabel(MEANING[axis])
        panel.set_ylabel("attainment")
        panel.grid(alpha=0.3)
        if number == 0:
            figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    replace_file(path, buffer.getvalue())
