"""Which slot of which device computes each choice of a batch, for one layer of a placement with replicas.

All devices come to the same answer by themselves: it depends on the choices alone.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from moe.arrays import Floats, Ints
from moe.expert_placement import ExpertPlacement
from moe.parallel.place_choices import Others, Placing, make_room, place_choices
from moe.split_kernel import make_homes, make_work


class Places:
    """Of one layer: slot s holds the expert `expert[s]` (-1: none), and device d has the slots start[d] to
    start[d + 1]. An expert's choices go to its slots so that the most loaded device, each for its speed [devices], has
    least, or, without `speed`, evenly. One thread."""

    def __init__(self, expert: Ints, start: Ints, experts: int, speed: Floats | None = None) -> None:
        assert start[-1] == len(expert)
        assert speed is None or speed.shape == (len(start) - 1,)
        assert bool(np.all(np.bincount(expert[expert >= 0], minlength=experts) > 0)), "an expert lives nowhere"
        self.experts = experts
        devices, slots = len(start) - 1, len(expert)
        self._placing = Placing(
            make_homes(np.ascontiguousarray(start), experts)._replace(expert=np.ascontiguousarray(expert)),
            speed=np.ones(devices) if speed is None else speed,
            evenly=speed is None,
            names=np.arange(slots),
            room=make_room(experts, slots),
            work=make_work(experts, devices),
        )
        self.device: Ints = self._placing.homes.device
        """[slots]: where each one is."""
        self.local: Ints = np.arange(slots) - start[self.device]
        """[slots]: its number there."""
        self.nobody = Others(np.zeros(experts, np.int64), np.zeros(experts, np.int64))

    def assign(self, experts: Tensor, counts: Tensor | None = None, rank: int = 0) -> Tensor:
        """experts [tokens, top_k] -> the slot of each choice, among those of all devices.

        Where ranks have tokens of their own, counts [ranks, experts] are their choices, of which these are `rank`'s.
        """
        others = self.nobody
        if counts is not None:
            every = counts.cpu().numpy()
            others = Others(every.sum(axis=0) - every[rank], every[:rank].sum(axis=0))
        return place(experts, self._placing, others)

    def own(self, device: int) -> Placing:
        """Gives each choice the number of its slot on one device, or -1 if that is elsewhere."""
        return self._placing._replace(names=np.where(self.device == device, self.local, -1))


def place(experts: Tensor, placing: Placing, others: Others) -> Tensor:
    """What `place_choices` finds, where `experts` are."""
    chosen = np.ascontiguousarray(experts.cpu().numpy())
    found = np.empty(chosen.shape, np.int64)
    place_choices(chosen, placing, others, found)
    return torch.from_numpy(found).to(experts.device)


def places_of(placement: ExpertPlacement, layer: int, speed: Floats | None = None) -> Places:
    """Of one layer; choices go to replicas by what balances the batch, on devices that are equal without `speed`."""
    speed = np.ones(placement.devices) if speed is None else speed
    return Places(placement.expert[layer], placement.start, placement.experts, speed)
