"""What the int8 product costs on a kind of GPU: compiled ahead of time for it, with no GPU at hand."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import torch

from moe.kernels.ahead import Usage, compile_ahead, gpu_of
from moe.kernels.products import Tile, options
from serving.models import int8_product

_INPUTS = 4096


class ProductReport(NamedTuple):
    normed: bool
    tile: Tile
    usage: Usage


def report(target: str) -> list[ProductReport]:
    """Every tile that is shipped, for "sm_80" and its like or "gfx942" and its like. In fp16 alone: bf16, in which int8
    weights are served, compiles to the same."""
    tiles = product((False, True), int8_product.ROWS)
    return [_measure(target, normed, int8_product.shipped_tile(rows, normed)) for normed, rows in tiles]


def _measure(target: str, normed: bool, cut: Tile) -> ProductReport:
    gpu = gpu_of(target)
    kinds = dict.fromkeys(("x", "bias", "gain", "y"), "*fp16") | {"weight": "*i8", "scale": "*fp32", "eps": "fp32"}
    kinds |= dict.fromkeys(("tokens", "outputs", "inputs", "x_stride"), "i32")
    constants = int8_product.constants(cut, normed, _INPUTS, torch.float16, gpu.backend == "hip")
    aligned = ("outputs", "inputs", "x_stride")
    return ProductReport(
        normed, cut, compile_ahead(int8_product.multiply_tiles, kinds, constants, options(cut), aligned, gpu)
    )
