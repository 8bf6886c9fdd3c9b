"""Experts spread over devices that all have all tokens, as the devices of a tensor-parallel group do.

Each device computes the choices that its slots take; the sum over devices, which the group makes anyway after a
feedforward part, is the whole answer. Nothing else is exchanged.
"""

from __future__ import annotations

from torch import Tensor

from moe.parallel.places import Places, place


class OwnPlaces:
    """What `ExpertLayer.place` calls on one device. `placing` and `nobody` are for who places in compiled code."""

    def __init__(self, places: Places, device: int) -> None:
        self.placing, self.nobody = places.own(device), places.nobody

    def __call__(self, experts: Tensor) -> Tensor:
        return place(experts, self.placing, self.nobody)
