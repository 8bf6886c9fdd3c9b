"""The figures of a page as one PNG, for papers: plotly's JSON, as far as our figures use it, drawn by matplotlib."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

DASHES = {"dash": "--", "dot": ":", "solid": "-"}
MARKERS = {"circle": "o", "diamond": "D", "square": "s", "line-ew-open": "_"}
COLUMNS, WIDTH, HEIGHT = 2, 6.4, 4.0
"""Panels beside each other, and inches of each."""
DPI = 110
_GREY = "#888888"


def draw_png(figures: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A panel for each figure, under its title."""
    # Not pyplot: it keeps figures in a global list and may look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(figures), COLUMNS) or 1
    rows = -(-len(figures) // columns) or 1
    sheet = Figure(figsize=(WIDTH * columns, HEIGHT * rows + 0.4), layout="constrained")
    FigureCanvasAgg(sheet)
    for number, (title, figure) in enumerate(figures.items()):
        panel = sheet.add_subplot(rows, columns, number + 1)
        panel.set_title(title, fontsize=11)
        _draw(panel, figure["data"], figure.get("layout", {}))
    buffer = io.BytesIO()
    sheet.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _draw(panel: Any, traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> None:
    below: dict[Any, float] = {}
    named = 0
    for trace in traces:
        name = html.unescape(str(trace.get("name", "")))
        named += bool(name)
        match trace.get("type", "scatter"):
            case "bar":
                _bar(panel, trace, name, below, layout.get("barmode") == "stack")
            case "heatmap":
                _heat(panel, trace)
            case _:
                _line(panel, trace, name)
    for shape in layout.get("shapes", ()):
        panel.axhline(shape["y0"], color=_GREY, linewidth=1, linestyle="--")
    for axis in "xy":
        _axis(panel, axis, layout.get(f"{axis}axis", {}))
    panel.grid(alpha=0.3)
    if named > 1:
        panel.legend(fontsize=8)


def _line(panel: Any, trace: Mapping[str, Any], name: str) -> None:
    line, marker, mode = trace.get("line", {}), trace.get("marker", {}), trace.get("mode", "lines")
    x = trace.get("x", range(len(trace["y"])))
    y = [float("nan") if value is None else value for value in trace["y"]]
    panel.plot(
        x,
        y,
        label=name or None,
        color=line.get("color") or marker.get("color"),
        linewidth=0.75 * line.get("width", 2),
        linestyle=DASHES[line.get("dash", "solid")] if "lines" in mode else "none",
        drawstyle="steps-post" if line.get("shape") == "hv" else "default",
        marker=MARKERS.get(marker.get("symbol", "circle"), "o") if "markers" in mode else None,
        markersize=marker.get("size", 5) * 0.8,
        alpha=marker.get("opacity"),
    )


def _bar(panel: Any, trace: Mapping[str, Any], name: str, below: dict[Any, float], stacks: bool) -> None:
    colour = trace.get("marker", {}).get("color")
    if isinstance(colour, list):  # a number for each bar
        from matplotlib import colormaps

        most = max([*colour, 1])
        colour = [colormaps["viridis"](value / most) for value in colour]
    if trace.get("orientation") == "h":
        panel.barh(trace["y"], trace["x"], left=trace.get("base"), color=colour, label=name or None)
        return
    x, y = list(trace["x"]), list(trace["y"])
    bottom = [below.get(at, 0.0) for at in x] if stacks else [0.0] * len(x)
    width = min((b - a for a, b in pairwise(x)), default=0.8) if _are_numbers(x) else 0.8
    panel.bar(x, y, width, bottom, color=colour, label=name or None)
    below.update({at: low + high for at, low, high in zip(x, bottom, y, strict=True)})


def _heat(panel: Any, trace: Mapping[str, Any]) -> None:
    x, y, z = trace.get("x"), trace.get("y"), trace["z"]
    left, right = (x[0], x[-1]) if x and _are_numbers(x) and len(x) > 1 else (-0.5, len(z[0]) - 0.5)
    extent = (left, right, len(z) - 0.5, -0.5)
    drawn = panel.imshow(z, aspect="auto", extent=extent, vmin=trace.get("zmin"), vmax=trace.get("zmax"))
    panel.figure.colorbar(drawn, ax=panel)
    if y and not _are_numbers(y):
        panel.set_yticks(range(len(y)), [html.unescape(str(name)) for name in y])


def _axis(panel: Any, axis: str, layout: Mapping[str, Any]) -> None:
    getattr(panel, f"set_{axis}label")(html.unescape(layout.get("title", {}).get("text", "")))
    if layout.get("type") == "log":
        getattr(panel, f"set_{axis}scale")("log")
    ticks = getattr(panel, f"set_{axis}ticks")
    if "tickvals" in layout:
        texts = layout.get("ticktext", layout["tickvals"])
        ticks(list(layout["tickvals"]), [html.unescape(str(text)) for text in texts])
        panel.minorticks_off()
    elif "%" in layout.get("tickformat", ""):
        from matplotlib.ticker import PercentFormatter

        getattr(panel, f"{axis}axis").set_major_formatter(PercentFormatter(1.0))
    is_inverted = getattr(panel, f"{axis}axis_inverted")()
    if layout.get("autorange") == "reversed" and not is_inverted:
        getattr(panel, f"invert_{axis}axis")()


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)
