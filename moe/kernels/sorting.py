"""Choices sorted by slot on GPUs: one program for each slot reads all places, and so keeps the order of tokens without
a word to the others. Nothing is read back to the host."""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from moe.steps import Sorted

BLOCK = 1024
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}


def sort_places(places: Tensor, slots: int) -> Sorted:
    """The same as steps.sort_places; places are int32 or int64."""
    places = places.contiguous()
    choices = places.numel()
    counts, ends, tokens, rows = (
        places.new_empty(shape, dtype=torch.int32) for shape in ((slots,), (slots,), (choices,), places.shape)
    )
    known = constants(slots)
    count_places[(slots,)](places, counts, choices, BLOCK=known["BLOCK"], **OPTIONS)
    # One program more than slots, for the choices that are elsewhere.
    put_places[(slots + 1,)](places, counts, ends, tokens, rows, choices, slots, places.shape[1], **known, **OPTIONS)
    return Sorted(tokens, ends, rows)


def constants(slots: int) -> dict[str, Any]:
    """What is known when the kernels are compiled."""
    return {"BLOCK": BLOCK, "SLOTS": triton.next_power_of_2(slots)}


@triton.jit(do_not_specialize=["choices"])  # type: ignore[untyped-decorator]
def count_places(places: tl.tensor, counts: tl.tensor, choices: tl.tensor, BLOCK: tl.constexpr) -> None:
    slot = tl.program_id(0)
    found = tl.zeros([BLOCK], tl.int32)
    for start in range(0, choices, BLOCK):
        at = start + tl.arange(0, BLOCK)
        found += (tl.load(places + at, mask=at < choices, other=-1) == slot).to(tl.int32)
    tl.store(counts + slot, tl.sum(found))


@triton.jit(do_not_specialize=["choices", "slots", "top_k"])  # type: ignore[untyped-decorator]
def put_places(
    places: tl.tensor,
    counts: tl.tensor,
    ends: tl.tensor,
    tokens: tl.tensor,
    rows: tl.tensor,
    choices: tl.tensor,
    slots: tl.tensor,
    top_k: tl.tensor,
    BLOCK: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    slot = tl.program_id(0)
    others = tl.arange(0, SLOTS)
    before = tl.sum(tl.load(counts + others, mask=(others < slot) & (others < slots), other=0))
    if slot < slots:
        tl.store(ends + slot, before + tl.load(counts + slot))
    for start in range(0, choices, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < choices
        place = tl.load(places + at, mask=inside, other=-2)
        if slot < slots:
            mine = place == slot
            row = before + tl.cumsum(mine.to(tl.int32)) - 1
            tl.store(tokens + row, at // top_k, mask=mine)
            tl.store(rows + at, row, mask=mine)
            before += tl.sum(mine.to(tl.int32))
        else:
            tl.store(rows + at, tl.full([BLOCK], -1, tl.int32), mask=inside & (place < 0))
