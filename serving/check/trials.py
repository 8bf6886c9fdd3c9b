"""What `penstock check --tune` tries on a GPU: tiles around those that are shipped, at the sizes of large models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from moe import steps
from moe.kernels import products
from moe.kernels.tiles import Cut, trying
from serving.attention import Attention, triton_paged
from serving.check.attention_case import LARGE
from serving.check.limits import seconds_of
from serving.check.tune import Trial

HEAD_DIMS = (64, 128, 256)


def trials() -> Iterator[Trial]:
    where = torch.device("cuda:0")
    yield from _attention(where)
    yield from _products(where)


def _attention(where: torch.device) -> Iterator[Trial]:
    ours = Attention(triton_paged.paged_attention, triton_paged.store_kv)
    for shape, head_dim in product(LARGE, HEAD_DIMS):
        step = replace(shape, head_dim=head_dim).make(where, torch.float16)
        prefill = shape.queries > 1
        rows = (32, 64, 128) if prefill else (16,)

        def seconds(cut: Cut, step: Any = step, prefill: bool = prefill, head_dim: int = head_dim) -> float:
            with trying(triton_paged.tile_key(prefill, head_dim, 2), cut):
                return seconds_of(lambda: step.run(ours), where)

        shipped = triton_paged.shipped_tile(prefill, head_dim, 2, triton_paged.is_hip())
        yield Trial(
            triton_paged.tile_key(prefill, head_dim, 2),
            Cut(shipped.rows, shipped.keys, shipped.warps, shipped.registers),
            [Cut(*one) for one in product(rows, (32, 64, 128), (4, 8), (168, 255))],
            seconds,
        )


def _products(where: torch.device) -> Iterator[Trial]:
    slots, hidden, inner, top_k = 64, 2048, 1024, 8
    random = torch.Generator().manual_seed(4)
    for (load, tokens), gated in product((("few", 32), ("some", 512), ("many", 4096)), (True, False)):
        places = torch.rand(tokens, slots, generator=random).argsort(dim=1)[:, :top_k].to(where)
        x = torch.randn(tokens, hidden, generator=random).to(where, torch.float16)
        outputs = 2 * inner if gated else inner
        weight = torch.randn(slots, outputs, hidden, generator=random).to(where, torch.float16)
        order = steps.sort_places(places, slots)
        key = products.tile_key(load, gated, 2)  # type: ignore[arg-type]

        def seconds(
            cut: Cut, x: Any = x, order: Any = order, weight: Any = weight, gated: bool = gated, key: str = key
        ) -> float:
            how: dict[str, Any] = {"activation": "silu", "gated": True} if gated else {}
            with trying(key, cut):
                return seconds_of(lambda: products.multiply(x, order.tokens, order.ends, weight, **how), where)

        shipped = products.shipped_tile(load, gated, 2)  # type: ignore[arg-type]
        rows = {"few": (16, 32), "some": (32, 64, 128), "many": (64, 128, 256)}[load]
        yield Trial(
            key,
            Cut(shipped.rows, shipped.columns, shipped.depth, shipped.warps, shipped.stages),
            [Cut(*one) for one in product(rows, (64, 128, 256), (32, 64), (4, 8), (2, 3, 4))],
            seconds,
        )
