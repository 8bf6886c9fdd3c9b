"""Replica counts and balanced packing for whole loads: what several policies share."""

from __future__ import annotations

import numpy as np

from moe.arrays import Floats, Ints
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.replication.build_kernel import make_yard
from moe.replication.packing_kernel import count_layers, pack_layers


def falling(load: Floats) -> Ints:
    """[layers, experts]: experts by falling load."""
    return np.argsort(-load, axis=1, kind="stable")


def counted(load: Floats, slots: int, most: int, discount: float = 0.0) -> Ints:
    """[layers, experts]: one replica each, every further one to the greatest load / (replicas - discount)."""
    replicas = np.empty(load.shape, np.int64)
    yard = make_yard(load.shape[1], 1)
    count_layers(load, falling(load), slots, most, discount, 1.0, yard, replicas)
    return replicas


def packed(load: Floats, replicas: Ints, pool: Pool, distinct: bool) -> ExpertPlacement:
    """Replicas by falling share of load, each to the least loaded device with room."""
    layers, experts = load.shape
    item = np.repeat(np.tile(np.arange(experts), layers), replicas.ravel()).reshape(layers, -1)
    share = np.take_along_axis(load / replicas, item, axis=1)
    order = np.argsort(-share, axis=1, kind="stable")
    item, share = np.take_along_axis(item, order, axis=1), np.take_along_axis(share, order, axis=1)
    expert = np.full((layers, pool.total), -1, np.int64)
    pack_layers(item, share, pool.start, pool.speed, distinct, make_yard(experts, pool.devices), expert)
    return ExpertPlacement(expert, pool.start, experts)
