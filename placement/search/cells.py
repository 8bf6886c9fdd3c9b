"""Large clusters in parts: cells of whole nodes with a share of the models each, planned one by one.

Beyond some tens of devices, pooling more of them brings little (a burst is small against the pool), while the search
grows with groups x models x requests; cells keep it in proportion to the requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from placement.clocks import Bools, Ints
from placement.cluster import Cluster, Node
from placement.problem import Problem
from placement.search.candidate import Space
from placement.tables import Catalogue

CELL_DEVICES = 64
CELL_MODELS = 64


@dataclass(frozen=True)
class Cell:
    """A part of a problem; `models` are the indices of its models in the whole."""

    problem: Problem
    models: Ints


def split_cells(problem: Problem, demand: Ints | np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[Cell]:
    """One cell for a small problem; else parts of about equal demand. `demand` [models] in device-seconds."""
    devices, models = len(problem.cluster.devices), len(problem.models)
    nodes = [node for node in problem.cluster.nodes if node.devices]
    count = max(math.ceil(devices / CELL_DEVICES), math.ceil(models / CELL_MODELS))
    count = min(count, len(nodes), models)
    if devices <= 2 * CELL_DEVICES and models <= 2 * CELL_MODELS:
        count = 1
    while count > 1:
        dealt = _deal_nodes(nodes, count)
        fits = _fits(problem, dealt)
        if fits.any(axis=0).all():
            room = np.array([sum(node.devices for node in part) for part in dealt], np.float64)
            owner = _deal_models(np.asarray(demand, np.float64), room, fits)
            parts = [(part, np.flatnonzero(owner == cell)) for cell, part in enumerate(dealt)]
            return [_cell(problem, part, held) for part, held in parts if len(held)]
        count //= 2  # a model needs more devices than a cell has
    return [Cell(problem, np.arange(models))]


def _deal_nodes(nodes: list[Node], count: int) -> list[list[Node]]:
    """Nodes in turn, kind by kind, each to the cell with the fewest devices of that kind."""
    parts: list[list[Node]] = [[] for _ in range(count)]
    for kind in dict.fromkeys(node.kind for node in nodes):
        for node in (node for node in nodes if node.kind == kind):
            emptiest = min(
                range(count),
                key=lambda cell: (sum(n.devices for n in parts[cell] if n.kind == kind), len(parts[cell])),
            )
            parts[emptiest].append(node)
    return parts


def _fits(problem: Problem, dealt: list[list[Node]]) -> Bools:
    """[cells, models]: whether some group of the cell's devices could hold the model."""
    known: dict[tuple[tuple[str, int, int], ...], Bools] = {}  # cells of like nodes are alike
    rows = []
    for part in dealt:
        key = tuple(sorted((node.kind, node.devices, int(node.memory)) for node in part))
        if key not in known:
            space = Space(Catalogue(replace(problem, cluster=Cluster(tuple(part)))))
            known[key] = np.any(space.fits_alone, axis=0)
        rows.append(known[key])
    return np.stack(rows)


def _deal_models(
    demand: np.ndarray[tuple[int], np.dtype[np.float64]],
    room: np.ndarray[tuple[int], np.dtype[np.float64]],
    fits: Bools,
) -> Ints:
    """[models] -> cell: the most demanding first, each to the cell with the least demand (and models) for its room, of
    those it fits."""
    owner = np.zeros(len(demand), np.int64)
    load = np.zeros(len(room))
    held = np.zeros(len(room))
    even = demand.sum() / max(len(demand), 1)
    for model in np.argsort(-demand, kind="stable"):
        # Models count too: each takes memory, however little it is asked.
        cell = int(np.argmin(np.where(fits[:, model], (load + 0.5 * even * held) / room, np.inf)))
        owner[model] = cell
        load[cell] += demand[model]
        held[cell] += 1
    return owner


def _cell(problem: Problem, nodes: list[Node], models: Ints) -> Cell:
    place = np.full(len(problem.models), -1, np.int32)
    place[models] = np.arange(len(models))
    part = problem.workload.select(np.flatnonzero(place[problem.workload.model] >= 0))
    part = replace(part, model=place[part.model])
    chosen = tuple(problem.models[index] for index in models)
    return Cell(replace(problem, cluster=Cluster(tuple(nodes)), models=chosen, workload=part), models)
