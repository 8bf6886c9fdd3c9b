"""The page about a comparison of policies: a curve for every axis, and how far each policy goes."""

from __future__ import annotations

from pathlib import Path

from placement.comparison import BOUND, MORE_IS_HARDER, Comparison
from placement.files import replace_file
from placement.report.figures import attainment_curves
from reports import Page, percent

TITLES = {"rate": "Rate", "cv": "Burstiness", "slo_scale": "Tightness of the SLO", "devices": "Devices"}


def write_comparison_report(path: Path, comparison: Comparison, command: str) -> None:
    """One page, nothing outside it needed. `command` is what the user typed to get it."""
    replace_file(path, _page(comparison, command).html().encode())


def write_comparison_png(path: Path, comparison: Comparison) -> None:
    """The curves, for places that show no HTML: dotted lines are shortest-queue."""
    replace_file(path, _page(comparison, "").png())


def _page(comparison: Comparison, command: str) -> Page:
    page = Page("Policies compared")
    best = comparison.best
    page.facts(
        [
            (f"attainment of the best: {best.policy}, {best.rule}", percent(best.attainment)),
            (f"its worst model: {best.worst_model[0]}", percent(best.worst_model[1])),
        ]
    )
    page.heading(
        "How far each policy goes",
        f"The hardest tested value at which attainment is at least {percent(comparison.at)}; one axis is "
        "varied at a time. Attainment and the worst model are those of the problem itself, on workloads that "
        "nobody planned on.",
    )
    header, *rows = comparison.limit_rows()
    page.table(header, rows)
    if BOUND in {point.policy for point in comparison.base}:
        page.paragraph(
            f"{BOUND} plans anew for every window, swaps for nothing and knows what will come: an idealised bound."
        )
    for axis in comparison.axes:
        harder = "right" if MORE_IS_HARDER[axis] else "left"
        page.heading(TITLES[axis], f"Harder to the {harder}. Every point is planned anew; dotted: shortest-queue.")
        page.figure(attainment_curves(comparison, axis), height=420)
        header, *rows = comparison.curve_rows(axis)
        page.heading(f"{TITLES[axis]}, in figures")
        page.table(header, rows)
    if comparison.notes:
        page.heading("Notes")
        for note in comparison.notes:
            page.paragraph(note)
    page.made_by(command, list(comparison.inputs.items()))
    return page
