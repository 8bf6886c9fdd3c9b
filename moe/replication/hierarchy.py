"""Placement in two steps: groups of experts to nodes, then each node's experts on its devices, by any policy.

For models whose gate limits a token to a few groups: its traffic then stays on a few nodes.
"""

from __future__ import annotations

import numpy as np

from moe.arrays import Ints
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.replication.base import Policy, Task
from moe.replication.counting import packed
from placement.errors import InputError


def place_by_node(policy: Policy, task: Task, groups: int) -> ExpertPlacement:
    """`groups` groups of neighbouring experts, the same number on each node."""
    layers, experts = task.load.shape
    nodes = int(task.pool.node.max()) + 1
    if experts % groups or groups % nodes:
        raise InputError(f"{groups} groups of {experts} experts on {nodes} nodes: each must divide the one before it")
    owned = _experts_of_nodes(task, groups, nodes)
    expert = np.full((layers, task.pool.total), -1, np.int64)
    rows = np.arange(layers)[:, None]
    for node in range(nodes):
        own = owned[:, node]
        local = Task(
            np.ascontiguousarray(np.take_along_axis(task.load, own, axis=1)),
            task.pool.of_node(node),
            None if task.history is None else np.ascontiguousarray(task.history[:, rows, own]),
        )
        placed = policy.place(local).expert
        names = np.concatenate([own, np.full((layers, 1), -1)], axis=1)
        first = task.pool.start[:-1][task.pool.node == node][0]
        expert[:, first : first + placed.shape[1]] = np.take_along_axis(names, placed, axis=1)
    return ExpertPlacement(expert, task.pool.start, experts)


def _experts_of_nodes(task: Task, groups: int, nodes: int) -> Ints:
    """[layers, nodes, experts of a node]"""
    layers, experts = task.load.shape
    size = experts // groups
    load = np.ascontiguousarray(task.load.reshape(layers, groups, size).sum(axis=2))
    speed = np.bincount(task.pool.node, weights=task.pool.speed).astype(np.float64)
    each = np.full(nodes, groups // nodes, np.int64)
    homes = packed(load, np.ones(load.shape, np.int64), Pool(speed, each, np.arange(nodes)), distinct=True)
    members = np.sort(homes.expert.reshape(layers, nodes, -1), axis=2)[..., None] * size + np.arange(size)
    return np.asarray(members.reshape(layers, nodes, -1))
