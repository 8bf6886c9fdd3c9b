"""A layer's experts on one CPU core in one compiled call, from what attention adds to what the experts add: norm,
router, gate, places and experts. Between small products Python and torch cost as much as these do.

The same arithmetic in the same order as `moe.layer.ExpertLayer` has it; tokens that the compiled gate leaves to torch
take the whole step there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moe.gate_kernel import choose
from moe.parallel.place_choices import Others, Placing, place_choices
from moe.parallel.places import Places
from moe.parallel.replicated import OwnPlaces
from placement.compiled import entry_point
from serving.attention.cpu_product import WIDTH
from serving.models.decoder import Experts
from serving.models.panel_experts import PanelExperts, run_experts
from serving.models.panel_experts import Room as BankRoom
from serving.models.panels import multiply
from serving.models.rows import add, rms_norm


class Room(NamedTuple):
    """What a step works in, [tokens, ...]."""

    normed: Any  # hidden
    scores: Any  # experts, padded
    shares: Any  # top_k
    found: Any  # top_k
    bank: BankRoom

    def first(self, tokens: int) -> Room:
        """For so many of the tokens that it is made for."""
        return Room(self.normed[:tokens], self.scores[:tokens], self.shares[:tokens], self.found[:tokens], self.bank)


class Router(NamedTuple):
    """What comes before the choice."""

    norm: Any  # [hidden]
    eps: float
    matrix: Any  # [5] as Panels.address, float32
    experts: int


@entry_point
def run_expert_layer(
    x: Any,
    added: Any,
    router: Any,
    placing: Placing,
    others: Others,
    is_placed: bool,
    bank: Any,
    room: Any,
    chosen: Any,
) -> int:
    """Add `added` to x, then fill it, and `chosen` [tokens, top_k]; how many tokens the gate leaves to torch: if any,
    room.normed and room.scores are all that is there."""
    add(x, added)
    rms_norm(x, router.norm, router.eps, room.normed)
    multiply(room.normed, len(x), router.matrix, False, room.scores)
    left = choose(room.scores[:, : router.experts], chosen, room.shares)
    if left > 0:
        return left
    places = chosen
    if is_placed:
        place_choices(chosen, placing, others, room.found)
        places = room.found
    run_experts(room.normed, places, room.shares, bank, room.bank, added)
    return 0


class CompiledExperts:
    """The experts of one layer. What they are and where they lie is asked for at each step, since experts move."""

    def __init__(self, part: Experts, norm: NDArray[np.float32], eps: float) -> None:
        """`part`'s router is in panels, its experts are a PanelExperts."""
        self._part = part
        router: Any = part.router
        self._count = router.outputs
        self._router = Router(norm, eps, np.array(router.panels.address), self._count)
        # For a device that has all experts in their own slots.
        own = OwnPlaces(Places(np.zeros(1, np.int64), np.array([0, 1]), 1), 0)
        self._no_place = own.placing, own.nobody

    def room(self, tokens: int) -> Room:
        """The same for all layers with experts of one size."""
        top_k, bank = self._part.gate.top_k, self._part.experts
        assert isinstance(bank, PanelExperts)
        return Room(
            normed=np.empty((tokens, bank.hidden), np.float32),
            scores=np.empty((tokens, -(-self._count // WIDTH) * WIDTH), np.float32),
            shares=np.empty((tokens, top_k), np.float32),
            found=np.empty((tokens, top_k), np.int64),
            bank=bank.room(tokens, tokens * top_k, self._count),
        )

    def fits(self, room: Room) -> bool:
        """Whether it was made for experts as wide as those that are here now: slices may have become whole ones."""
        bank = self._part.experts
        assert isinstance(bank, PanelExperts)
        width: int = room.bank.narrow.shape[1]
        return width == bank.ffn

    def run(self, x: NDArray[np.float32], added: NDArray[np.float32], room: Room) -> None:
        """Add `added` to x; what the experts here add is then in its place."""
        assert self.fits(room)  # compiled code looks at no bounds
        part = self._part
        bank: Any = part.experts
        place: Any = part.place
        placing, nobody = self._no_place if place is None else (place.placing, place.nobody)
        is_placed, chosen = place is not None, np.empty(room.found.shape, np.int64)
        left = run_expert_layer(x, added, self._router, placing, nobody, is_placed, bank.bank, room, chosen)
        if left > 0:
            scores = torch.from_numpy(room.scores)[:, : self._count]
            added[:] = part.answer(torch.from_numpy(room.normed), scores).numpy()
        elif part.counter is not None:
            part.counter.note(torch.from_numpy(chosen))


def can_compile(part: Experts) -> bool:
    gate, place = part.gate, part.place
    is_plain = gate.is_plain and gate.scale == 1.0 and part.bias is None and part.shared is None
    return is_plain and isinstance(part.experts, PanelExperts) and (place is None or isinstance(place, OwnPlaces))
