"""Figures of the documentation, drawn by matplotlib: the same SVG for the same numbers, light whatever surrounds it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

MEASURED, SIMULATED = "#1d4ed8", "#f59e0b"
GREY = "#6b7280"


def new_figure(width: float, height: float) -> Any:
    # Not pyplot: it keeps figures in a global list and may look for a display.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def write_svg(path: Path, figure: Any) -> None:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    from placement.files import replace_file

    FigureCanvasSVG(figure)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    replace_file(path, buffer.getvalue())
