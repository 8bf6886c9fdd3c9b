"""Which experts of each layer are on which device. A value: what is loaded, moved and switched is others' business."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from moe.arrays import Bools, Ints
from moe.pool import Pool
from placement.errors import InputError
from placement.files import read_document


@dataclass(frozen=True)
class ExpertPlacement:
    expert: Ints
    """[layers, slots], device by device; -1 is an empty slot."""
    start: Ints
    """[devices + 1]: the slots of device d are start[d] to start[d + 1]."""
    experts: int
    """Of a layer."""

    def __post_init__(self) -> None:
        assert self.expert.ndim == 2
        assert self.expert.shape[1] == self.start[-1]
        assert bool(np.all((self.expert >= -1) & (self.expert < self.experts)))
        assert bool(np.all(self.replicas > 0)), "an expert lives nowhere"

    @classmethod
    def of_lists(cls, lists: list[list[list[int]]]) -> ExpertPlacement:
        """From [layer][device][expert ids]; every layer has the same devices and experts 0 to the greatest."""
        if not lists or not lists[0]:
            raise InputError("no layers or no devices in it")
        devices = len(lists[0])
        if any(len(layer) != devices for layer in lists):
            raise InputError("the layers have different numbers of devices")
        if min((expert for layer in lists for held in layer for expert in held), default=-1) < 0:
            raise InputError("experts are numbered from 0")
        experts = 1 + max(expert for layer in lists for held in layer for expert in held)
        for number, layer in enumerate(lists):
            missing = set(range(experts)).difference(*layer)
            if missing:
                raise InputError(f"layer {number}: expert {min(missing)} lives nowhere")
        most = [max(len(layer[device]) for layer in lists) for device in range(devices)]
        start = np.concatenate([[0], np.cumsum(most)]).astype(np.int64)
        expert = np.full((len(lists), int(start[-1])), -1, np.int64)
        for number, layer in enumerate(lists):
            for device, held in enumerate(layer):
                expert[number, start[device] : start[device] + len(held)] = held
        return cls(expert, start, experts)

    @property
    def layers(self) -> int:
        return len(self.expert)

    @property
    def devices(self) -> int:
        return len(self.start) - 1

    @property
    def device(self) -> Ints:
        """[slots]"""
        return np.repeat(np.arange(self.devices), np.diff(self.start))

    @property
    def replicas(self) -> Ints:
        """[layers, experts]"""
        layers = self.expert.shape[0]
        filled = self.expert >= 0
        keys = (np.arange(layers)[:, None] * self.experts + self.expert)[filled]
        return np.bincount(keys, minlength=layers * self.experts).reshape(layers, self.experts)

    def lists(self) -> list[list[list[int]]]:
        """[layer][device][expert ids]"""
        bounds = list(zip(self.start[:-1].tolist(), self.start[1:].tolist(), strict=True))
        return [
            [[expert for expert in layer[begin:end] if expert >= 0] for begin, end in bounds]
            for layer in self.expert.tolist()
        ]

    def held(self, devices: int) -> Bools:
        """[layers, devices, experts]: what is where; of more devices than there are, the others hold nothing."""
        held = np.zeros((self.layers, max(devices, self.devices), self.experts + 1), bool)
        layers = np.arange(self.layers)[:, None]
        held[layers, self.device[None, :], self.expert] = True  # -1 is the last column, which is dropped
        return held[:, :devices, : self.experts]

    def copies_from(self, previous: ExpertPlacement) -> Bools:
        """[layers, devices, experts]: what must be copied to a device that has it not yet."""
        return self.held(self.devices) & ~previous.held(self.devices)

    def fitted(self, pool: Pool) -> ExpertPlacement | None:
        """The same, on the slots of this pool; None if it has not room for it device by device."""
        room = pool.slots
        if self.devices != pool.devices:
            return None
        expert = np.full((self.layers, pool.total), -1, np.int64)
        for device, begin in enumerate(pool.start[:-1]):
            own = self.expert[:, self.start[device] : self.start[device + 1]]
            own = np.take_along_axis(own, np.argsort(own < 0, axis=1, kind="stable"), axis=1)
            if bool(np.any(own[:, room[device] :] >= 0)):
                return None
            own = own[:, : room[device]]
            expert[:, begin : begin + own.shape[1]] = own
        return ExpertPlacement(expert, pool.start, self.experts)


class PlacementFile(msgspec.Struct):
    """What `penstock moe replicate --json` prints has more fields; this one counts."""

    placement: list[list[list[int]]]


def read_placement(path: Path) -> ExpertPlacement:
    lists = read_document(path, PlacementFile).placement
    try:
        return ExpertPlacement.of_lists(lists)
    except InputError as error:
        raise InputError(f"{path}: placement: {error}") from error
