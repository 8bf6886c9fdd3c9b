"""The page about a placement of experts: a heat map of loads and replicas, and the devices' loads before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from moe.arrays import Floats
from moe.expert_placement import ExpertPlacement
from moe.replicate import Replication
from moe.replication import Static, Task
from moe.split import Splitter
from placement.files import replace_file
from reports import Figure, Page

MOST_CELLS = 200_000
_MARGIN = {"l": 70, "r": 20, "t": 20, "b": 50}


def write_report(path: Path, task: Task, outcome: Replication, policy: str, command: str) -> None:
    """One page, nothing outside it needed."""
    layers, experts = task.load.shape
    summary = outcome.summary()
    page = Page(f"{layers} layers of {experts} experts on {task.pool.devices} devices, by {policy}")
    page.facts(
        [
            ("balancedness", f"{summary['balancedness']:.4f}"),
            ("before", f"{summary['balancedness_before']:.4f}"),
            ("when loads drift", f"{summary['balancedness_drift']:.4f}"),
            ("experts copied", str(summary["copies"])),
            ("bytes moved", f"{summary['bytes_moved']:,}"),
        ]
    )
    order = np.argsort(-task.load, axis=1, kind="stable")[:, : max(1, MOST_CELLS // layers)]
    share = task.load / np.maximum(task.load.sum(axis=1, keepdims=True), 1e-300) * task.pool.devices
    page.heading("Load of experts", "Each layer's experts by falling load, in devices' worth of tokens.")
    page.figure(heat(np.take_along_axis(share, order, axis=1), "expert, by load"), height(layers))
    page.heading("Replicas", "Of the same experts in the same order.")
    replicas = np.take_along_axis(outcome.placement.replicas, order, axis=1)
    page.figure(heat(replicas.astype(np.float64), "expert, by load"), height(layers))
    before = Static().place(task) if task.previous_here is None else task.previous_here
    for title, placement in (("Devices before", before), ("Devices after", outcome.placement)):
        page.heading(title, "Load over the mean, tokens split as is best.")
        page.figure(heat(_device_loads(task, placement), "device"), height(layers))
    page.heading("All figures")
    page.table(["figure", "value"], list(summary.items()))
    pool = [("devices", task.pool.devices), ("slots of a layer", task.pool.total), ("policy", policy)]
    page.made_by(command, [("layers", layers), ("experts", experts), *pool])
    replace_file(path, page.html().encode())


def _device_loads(task: Task, placement: ExpertPlacement) -> Floats:
    """[layers, devices]: over the mean."""
    flow = Splitter(placement, task.pool.speed).flow(task.load)
    total = np.concatenate([np.zeros((len(flow), 1)), np.cumsum(flow, axis=1)], axis=1)
    device = np.diff(total[:, placement.start], axis=1) / task.pool.speed
    mean = task.load.sum(axis=1, keepdims=True) / task.pool.speed.sum()
    return np.asarray(device / np.maximum(mean, 1e-300))


def heat(values: Floats, columns: str) -> Figure:
    data: dict[str, Any] = {
        "type": "heatmap",
        "z": np.round(values, 4).tolist(),
        "colorscale": "Viridis",
        "hovertemplate": f"layer %{{y}}, {columns} %{{x}}: %{{z}}<extra></extra>",
    }
    axes = {"xaxis": {"title": {"text": columns}}, "yaxis": {"title": {"text": "layer"}, "autorange": "reversed"}}
    return {"data": [data], "layout": {"margin": _MARGIN, **axes}}


def height(layers: int) -> int:
    return min(700, 160 + 8 * layers)
