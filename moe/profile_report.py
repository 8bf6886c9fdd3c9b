"""The page about a model's expert popularity: a heat map of shares, and how well they foretell other prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moe.profile import RouteProfile
from moe.report import MOST_CELLS, heat, height
from placement.files import replace_file
from reports import Page


def write_profile_report(
    path: Path | None, png: Path | None, model: str, prompts: Path, found: RouteProfile, command: str
) -> None:
    """One page, nothing outside it needed, and its heat maps as a picture."""
    page = _page(model, found)
    facts = [("model", model), ("prompts", prompts), ("number of prompts", found.prompts)]
    page.made_by(command, [*facts, ("tokens", found.paths.marginal.tokens)])
    if path is not None:
        replace_file(path, page.html().encode())
    if png is not None:
        replace_file(png, page.png())


def _page(model: str, found: RouteProfile) -> Page:
    choices, summary = found.paths.marginal.choices, found.summary()
    layers, experts = choices.shape
    held_out = summary["held_out"]
    page = Page(f"{model}: {layers} layers of {experts} experts")
    page.facts(
        [
            ("prompts", str(found.prompts)),
            ("tokens", f"{found.paths.marginal.tokens:,}"),
            *(
                (f"total variation, {name}", f"{held_out[name]['total_variation']:.3f}")
                for name in ("marginal", "path")
                if held_out[name] is not None
            ),
        ]
    )
    share = experts * choices / np.maximum(choices.sum(axis=1, keepdims=True), 1)
    most = max(1, MOST_CELLS // layers)
    page.heading("Popularity of experts", "Choices over the mean of the layer, by the expert's number.")
    page.figure(heat(share[:, :most], "expert"), height(layers))
    page.heading("The same by falling popularity")
    page.figure(heat(-np.sort(-share, axis=1)[:, :most], "expert, by popularity"), height(layers))
    page.heading("Layers", "Total variation is judged on prompts held out.")
    page.table(
        ["layer", "most chosen", "busiest over mean", "never chosen", "by mean", "by path"],
        [
            (
                row["layer"],
                ", ".join(f"{expert} ({part:.1%})" for expert, part in row["top"]),
                round(row["busiest_over_mean"], 2),
                row["never_chosen"],
                *("" if row[name] is None else round(row[name]["total_variation"], 3) for name in ("marginal", "path")),
            )
            for row in summary["layers"]
        ],
    )
    return page
