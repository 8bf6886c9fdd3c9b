"""Which part of a model one device holds: its place in the group and its share of each dimension.

Knows sizes, not weights: what is read for a part is in `names`, what computes with it in `decoder` and `encoder`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from moe.expert_placement import ExpertPlacement
from placement.costs.slicing import slice_stages
from placement.costs.transformer import TransformerConfig
from placement.errors import InputError


@dataclass(frozen=True)
class Shard:
    """Device `tp_rank` of stage `stage`; the stage holds the layers first_layer up to, not including, last_layer."""

    tp: int
    pp: int
    tp_rank: int
    stage: int
    first_layer: int
    last_layer: int
    experts: ExpertPlacement | None = field(default=None, compare=False)
    """Which whole experts each device of a stage holds, for all layers with experts; without it, each has a slice of
    every expert."""

    def __post_init__(self) -> None:
        assert 0 <= self.tp_rank < self.tp
        assert 0 <= self.stage < self.pp
        assert self.first_layer < self.last_layer
        assert self.experts is None or self.experts.devices == self.tp

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.pp - 1

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.last_layer)

    def held_experts(self, sizes: TransformerConfig, layer: int) -> list[int]:
        """The experts of a layer that this device has, whole or a slice of each, in the order of its slots."""
        if self.experts is None:
            return list(range(sizes.experts))
        return self.experts.lists()[expert_layer(sizes, layer)][self.tp_rank]

    def share(self, size: int) -> tuple[int, int]:
        """The range of `size` equal things that is this device's; the last devices may have fewer, even none."""
        each = -(-size // self.tp)
        start = min(self.tp_rank * each, size)
        return start, min(start + each, size)

    def kv_share(self, kv_heads: int) -> tuple[int, int]:
        """Its range of kv heads; with more devices than heads, neighbours hold the same one."""
        if kv_heads % self.tp == 0:
            return self.share(kv_heads)
        head = self.tp_rank * kv_heads // self.tp
        return head, head + 1


def expert_layer(sizes: TransformerConfig, layer: int) -> int:
    """The number of a layer among those with experts: what placements and loads count by."""
    return int(np.count_nonzero(sizes.has_experts[:layer]))


def make_shard(sizes: TransformerConfig, tp: int, pp: int, rank: int, experts: ExpertPlacement | None = None) -> Shard:
    """The part of device `rank` (stage x tp + place in the stage) of a group; an InputError says why not."""
    reason = sizes.why_not(tp, pp) or (None if experts is None else _why_not_placed(sizes, tp, experts))
    if reason is not None:
        raise InputError(f"shape ({tp}, {pp}): {reason}")
    boundaries = stage_boundaries(sizes, tp, pp)
    stage, tp_rank = divmod(rank, tp)
    return Shard(tp, pp, tp_rank, stage, boundaries[stage], boundaries[stage + 1], experts)


def _why_not_placed(sizes: TransformerConfig, tp: int, experts: ExpertPlacement) -> str | None:
    """Why this placement of experts is not one for the model on so many devices."""
    layers = int(np.count_nonzero(sizes.has_experts))
    for found, wanted, what in (
        (experts.devices, tp, "devices"),
        (experts.layers, layers, "layers with experts"),
        (experts.experts, sizes.experts, "experts"),
    ):
        if found != wanted:
            return f"experts are placed for {found} {what}, where there are {wanted}"
    return None


def stage_boundaries(sizes: TransformerConfig, tp: int, pp: int) -> list[int]:
    """The planner's slicing with weights as the cost: what a decoding step reads, and nearly what it computes.

    The vocabulary head counts for the last layer; looking up an embedding costs nothing to speak of.
    """
    layers = np.full(sizes.layers, float(sizes.attention_parameters(tp)))
    dense = sizes.ffn_parameters(sizes.ffn) / tp
    used = sizes.top_k * sizes.ffn_parameters(sizes.expert_ffn) / tp
    layers += np.where(sizes.has_experts, used, dense)
    if sizes.logits != "none":
        layers[-1] += sizes.table_parameters / tp
    return [int(cut) for cut in slice_stages(layers, layers, pp).boundaries]
