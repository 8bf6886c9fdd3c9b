"""How many experts a device holds. With more than it must, fewer tokens travel, and gradients of experts do instead.

Tokens cannot wait, gradients can: what is packed pays as long as gradients hide behind computation. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from placement.errors import InputError


@dataclass(frozen=True)
class Packing:
    """Devices in `replicas` rows; each row holds all experts, so tokens stay within their row."""

    devices: int
    experts: int
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.devices % self.replicas or self.experts % self.row:
            raise InputError(
                f"{self.experts} experts, {self.replicas} of each, on {self.devices} devices: replicas must divide the"
                f" devices, and the devices of a row the experts"
            )

    @property
    def row(self) -> int:
        """Devices among which tokens travel."""
        return self.devices // self.replicas

    @property
    def each(self) -> int:
        """Experts on a device."""
        return self.experts // self.row

    def held(self, device: int) -> range:
        first = device % self.row * self.each
        return range(first, first + self.each)

    def rows(self) -> list[list[int]]:
        """The devices of each row."""
        return [list(range(first, first + self.row)) for first in range(0, self.devices, self.row)]

    def columns(self) -> list[list[int]]:
        """Devices that hold the same experts."""
        return [list(range(first, self.devices, self.row)) for first in range(self.row)]


@dataclass(frozen=True)
class Costs:
    """Of one expert layer in one step, on one device."""

    tokens: int
    top_k: int
    row_bytes: int
    """Of one token."""
    expert_bytes: int
    compute_s: float
    """The experts' forward pass; backward is taken for twice as much."""
    other_s: float
    """The forward pass of the rest of the layer, and backward the same."""
    bytes_per_s: float
    other_bytes: int = 0
    """Of the rest of the layer's parameters: their gradients want to hide in the same time."""
    micro_batches: int = 2
    memory_bytes: float = math.inf
    """For the experts of this layer."""


def choose_packing(devices: int, experts: int, costs: Costs) -> Packing:
    """The shortest step that fits; of equals the one with fewest replicas."""
    fits = [
        packing
        for replicas in range(1, devices + 1)
        if devices % replicas == 0 and experts % (devices // replicas) == 0
        for packing in [Packing(devices, experts, replicas)]
        if packing.each * costs.expert_bytes <= costs.memory_bytes
    ]
    if not fits:
        raise InputError(f"{experts} experts do not fit on {devices} devices evenly, or not into their memory")
    return min(fits, key=lambda packing: (layer_s(packing, costs), packing.replicas))


def layer_s(packing: Packing, costs: Costs) -> float:
    """Seconds of the layer in one step, if choices are even: computation, and what it does not hide."""
    ways_s = 2 * travelling(packing, costs) * costs.row_bytes / costs.bytes_per_s  # there and back
    total = 0.0
    for passes in (1, 2):
        # All but one micro-batch's share of the shorter hides behind the longer.
        shorter, longer = sorted((passes * costs.compute_s, ways_s))
        total += passes * costs.other_s + longer + shorter / costs.micro_batches
    # Gradients are there in the backward pass alone, and go when no tokens do.
    idle_s = 2 * costs.other_s + max(0.0, 2 * costs.compute_s - ways_s)
    exchanged = _reduced(packing.each * costs.expert_bytes, packing.replicas)
    exchanged += _reduced(costs.other_bytes, packing.devices)
    return total + max(0.0, exchanged / costs.bytes_per_s - idle_s)


def travelling(packing: Packing, costs: Costs) -> float:
    """Rows that leave a device: a token goes once to each other device of its row that has one of its experts."""
    elsewhere, chosen = packing.experts - packing.each, costs.top_k
    missed = math.comb(elsewhere, chosen) / math.comb(packing.experts, chosen)
    return costs.tokens * (packing.row - 1) * (1 - missed)


def _reduced(size: int, ranks: int) -> float:
    """Bytes that each rank sends to sum up so many with the others."""
    return 2 * (ranks - 1) / ranks * size
