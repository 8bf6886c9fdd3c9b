"""Another placement of a loaded model's experts: prepared beside its steps, then switched to between two of them.

What a device has already stays where it is; only what it lacks is read. Nothing of the model changes before `switch`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from moe.expert_placement import ExpertPlacement
from moe.experts import Experts as PlainExperts
from moe.parallel.replicated import OwnPlaces
from placement.errors import InputError
from serving.models.checkpoint import Checkpoint
from serving.models.decoder import Decoder, Experts, own_places
from serving.models.linear import Precision
from serving.models.names import expert_sources
from serving.models.panel_experts import PanelExpert, PanelExperts, pack_expert
from serving.models.shard import make_shard

Digests = dict[tuple[int, int], int]
"""By layer and expert."""


class ExpertMove:
    """One device's part of a move. Made on any thread; switched to on the one that runs the model."""

    def __init__(self, model: Decoder, directory: Path, precision: Precision, placement: ExpertPlacement) -> None:
        """Reads what is missing; an InputError says why the placement is not one for this model."""
        old = model.shard
        self._model = model
        self._shard = make_shard(model.config.sizes, old.tp, old.pp, old.stage * old.tp + old.tp_rank, placement)
        self._banks: list[tuple[Experts, PanelExperts, OwnPlaces]] = []
        self.digests: Digests = {}
        """Of the experts that this device will have, and of those it had whole before."""
        self.read = 0
        """Experts that this device did not have."""
        checkpoint = Checkpoint(directory)
        for index, layer in enumerate(old.layers):
            part = model.layers[index].feedforward
            if isinstance(part, Experts):
                self._prepare(part, layer, checkpoint, precision)

    def switch(self) -> None:
        for part, bank, places in self._banks:
            part.experts, part.place = bank, places
        self._model.shard = self._shard

    def _prepare(self, part: Experts, layer: int, checkpoint: Checkpoint, precision: Precision) -> None:
        sizes, old = self._model.config.sizes, self._model.shard
        bank = part.experts
        if not isinstance(bank, PanelExperts):
            raise InputError("experts are moved on CPUs so far: on this device a layer's experts are one tensor")
        # Slices of experts are of no use to a device that needs whole ones.
        had = dict(zip(old.held_experts(sizes, layer), bank.held, strict=True)) if old.experts is not None else {}
        held = []
        for expert in self._shard.held_experts(sizes, layer):
            if expert not in had:
                had[expert] = self._read(layer, expert, checkpoint, precision)
                self.read += 1
            held.append(had[expert])
        self.digests |= {(layer, expert): one.digest for expert, one in had.items()}
        with torch.device("meta"):
            like = PlainExperts(0, sizes.hidden, sizes.expert_ffn, sizes.gated_ffn, self._model.config.activation)
        places = own_places(sizes, self._shard, layer)
        places(torch.zeros(1, sizes.top_k, dtype=torch.int64))  # compiles what the first step after it will call
        self._banks.append((part, PanelExperts(held, like), places))

    def _read(self, layer: int, expert: int, checkpoint: Checkpoint, precision: Precision) -> PanelExpert:
        sources = expert_sources(self._model.config, self._shard, layer, expert)
        up, down = (checkpoint.read(sources[part], torch.float32) for part in ("up", "down"))
        return pack_expert(up, down, precision)
