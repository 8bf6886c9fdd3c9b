"""The devices that hold experts: how fast each is, how many experts of a layer fit on it, and its node."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moe.arrays import Floats, Ints
from placement.errors import InfeasibleError, InputError


@dataclass(frozen=True)
class Pool:
    speed: Floats
    """[devices]: tokens per unit of time, in any unit; only ratios count."""
    slots: Ints
    """[devices]: experts of one layer that fit."""
    node: Ints
    """[devices]: rising."""

    def __post_init__(self) -> None:
        assert len(self.speed) == len(self.slots) == len(self.node) > 0
        assert bool(np.all(self.speed > 0)), "a device without speed"
        assert bool(np.all(self.slots >= 0)), "a device with a negative number of slots"

    @classmethod
    def even(cls, devices: int, slots: int, nodes: int = 1) -> Pool:
        """Equal devices; slots and devices that do not divide go to the first."""
        if devices < 1 or not 1 <= nodes <= devices:
            raise InputError(f"{devices} devices on {nodes} nodes: each node needs a device")
        return cls(
            np.ones(devices), _shared_out(slots, devices), np.repeat(np.arange(nodes), _shared_out(devices, nodes))
        )

    @classmethod
    def of_memory(cls, memory: list[int], expert_bytes: int, layers: int, speed: list[float] | None = None) -> Pool:
        """As many slots on each device as its memory holds experts of every layer."""
        slots = np.array(memory, np.int64) // (expert_bytes * layers)
        speeds = np.ones(len(memory)) if speed is None else np.array(speed, np.float64)
        return cls(speeds, slots, np.zeros(len(memory), np.int64))

    def with_speeds(self, speed: list[float]) -> Pool:
        if len(speed) != self.devices:
            raise InputError(f"{len(speed)} speeds for {self.devices} devices")
        return replace(self, speed=np.array(speed, np.float64))

    @property
    def devices(self) -> int:
        return len(self.speed)

    @property
    def total(self) -> int:
        """Slots of all devices."""
        return int(self.slots.sum())

    @property
    def start(self) -> Ints:
        """[devices + 1]: where each device's slots begin when they stand device by device."""
        return np.concatenate([[0], np.cumsum(self.slots)]).astype(np.int64)

    def check_room(self, experts: int) -> None:
        if self.total < experts:
            raise InfeasibleError(f"{self.total} slots for {experts} experts; each expert needs one")

    def of_node(self, node: int) -> Pool:
        here = self.node == node
        return Pool(self.speed[here], self.slots[here], self.node[here])


def _shared_out(things: int, among: int) -> Ints:
    return np.full(among, things // among, np.int64) + (np.arange(among) < things % among)
