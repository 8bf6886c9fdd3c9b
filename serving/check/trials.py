"""What `penstock check --tune` tries on a GPU: tiles around those that are shipped, at the sizes of large models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import torch

from moe import steps
from moe.kernels import products
from moe.kernels.tiles import Cut, trying
from serving.attention import Attention, triton_paged
from serving.check.attention_case import LARGE
from serving.check.int8_case import Int8Case
from serving.check.limits import seconds_of
from serving.check.tune import Trial
from serving.models import fused_rows, int8_product
from serving.models.linear import multiply_int8

HEAD_DIMS = (64, 128, 256)
INT8_SIZES = (4096, 6144)
"""Inputs and outputs of a layer's queries, keys and values."""
INT8_TOKENS = (1, 4, 16, 32, 64, 128, 256, 512)


def trials() -> Iterator[Trial]:
    where = torch.device("cuda:0")
    yield from _attention(where)
    yield from _products(where)
    yield from _int8_products(where)
    yield _int8_most_tokens(where)


def _attention(where: torch.device) -> Iterator[Trial]:
    ours = Attention(triton_paged.paged_attention, triton_paged.store_kv)
    for shape, head_dim in product(LARGE, HEAD_DIMS):
        step = replace(shape, head_dim=head_dim).make(where, torch.float16)
        prefill = shape.queries > 1

        def seconds(cut: Cut, step: Any = step, prefill: bool = prefill, head_dim: int = head_dim) -> float:
            with trying(triton_paged.tile_key(prefill, head_dim, 2), cut):
                return seconds_of(lambda: step.run(ours), where)

        shipped = triton_paged.shipped_tile(prefill, head_dim, 2, triton_paged.is_hip())
        yield Trial(
            triton_paged.tile_key(prefill, head_dim, 2),
            Cut(shipped.rows, shipped.keys, shipped.warps, shipped.registers),
            attention_cuts(prefill, triton_paged.is_hip()),
            seconds,
        )


def attention_cuts(prefill: bool, hip: bool) -> list[Cut]:
    """AMD's compiler knows no bound for registers."""
    rows, registers = (32, 64, 128) if prefill else (16,), (0,) if hip else (168, 255)
    return [Cut(*one) for one in product(rows, (32, 64, 128), (4, 8), registers)]


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


def _int8_products(where: torch.device) -> Iterator[Trial]:
    for rows, normed in product(int8_product.ROWS, (True, False)):
        arrays = Int8Case(rows, *INT8_SIZES, normed).make(where, torch.bfloat16)
        key = int8_product.tile_key(rows, normed)

        def seconds(cut: Cut, arrays: Any = arrays, key: str = key) -> float:
            with trying(key, cut):
                return seconds_of(lambda: int8_product.multiply(*arrays), where)

        shipped = int8_product.shipped_tile(rows, normed)
        yield Trial(
            key,
            Cut(shipped.rows, shipped.columns, shipped.depth, shipped.warps, shipped.stages),
            [Cut(rows, *one) for one in product((16, 32, 64, 128), (64, 128, 256), (4, 8), (3, 4, 5))],
            seconds,
        )


def _int8_most_tokens(where: torch.device) -> Trial:
    """With the tiles in use now: tune twice to judge it by those that were found."""

    def apart_and_joined_s(tokens: int) -> tuple[float, float]:
        x, weight, scale, bias, norm = Int8Case(tokens, *INT8_SIZES, True).make(where, torch.bfloat16)
        assert norm is not None
        return (
            seconds_of(lambda: multiply_int8(fused_rows.rms_norm(x, *norm), weight, scale, bias), where),
            seconds_of(lambda: int8_product.multiply(x, weight, scale, bias, norm), where),
        )

    return bound_trial(apart_and_joined_s)


def bound_trial(apart_and_joined_s: Callable[[int], tuple[float, float]]) -> Trial:
    """Up to how many tokens norm and product are one kernel: the bound with which a step of each size takes least."""
    known = cache(apart_and_joined_s)

    def seconds(cut: Cut) -> float:
        return sum(known(tokens)[tokens <= cut.first] for tokens in INT8_TOKENS)

    bounds = [int8_product.cut_at(tokens) for tokens in (0, *INT8_TOKENS)]
    return Trial(int8_product.MOST_KEY, int8_product.cut_at(int8_product.MOST_TOKENS), bounds, seconds)
