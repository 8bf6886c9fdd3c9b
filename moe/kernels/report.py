"""What the expert kernels cost on a kind of GPU: compiled ahead of time for it, with no GPU at hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import torch
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]

from moe.kernels import combining, products, sorting
from moe.kernels.ahead import compile_ahead, gpu_of

_DTYPES = {"fp16": torch.float16, "fp32": torch.float32}  # bf16 compiles to what fp16 does
_INPUTS, _SLOTS, _TOP_K = 2048, 64, 8
_PRODUCTS = tuple(itertools.product((True, False), products.LOADS))
_ALIGNED = ("outputs", "inputs", "x_stride", "hidden")


class KernelReport(msgspec.Struct, frozen=True):
    """One kernel, compiled for one target."""

    kernel: str
    target: str
    tile: tuple[int, int, int] | None
    """Rows, columns, depth of a product's tile."""
    weights: str
    """The dtype of what is multiplied or added up."""
    warps: int
    registers: int  # of a thread
    shared_bytes: int  # of a program
    spilled: int  # as ahead.Usage says


class Case(NamedTuple):
    """What to compile."""

    kernel: str
    function: Any
    kinds: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]
    weights: str


_TOO_LARGE = products.Tile(256, 256, 32, 4, 2)


def report(target: str) -> list[KernelReport]:
    """Compile every kernel with every tile that is shipped, for "sm_80" and its like or "gfx942" and its like."""
    gpu = gpu_of(target)
    return [_measure(case, target, gpu) for case in cases(gpu.backend == "hip")]


def spilling(target: str) -> KernelReport:
    """A product whose tile no target has registers for: shows that the report would tell."""
    gpu = gpu_of(target)
    cut = _TOO_LARGE
    case = _product("many", False, "fp16", "fp16", gpu.backend == "hip")
    sizes = {"ROWS": cut.rows, "COLUMNS": cut.columns, "DEPTH": cut.depth}
    return _measure(case._replace(constants=case.constants | sizes, options=products.options(cut)), target, gpu)


def cases(hip: bool) -> Iterator[Case]:
    """Every kernel, and every tile of the products."""
    known = sorting.constants(_SLOTS)
    counting = {"places": "*i64", "counts": "*i32", "choices": "i32"}
    yield Case("count", sorting.count_places, counting, {"BLOCK": known["BLOCK"]}, sorting.OPTIONS, "i64")
    lists = dict.fromkeys(("counts", "ends", "tokens", "rows"), "*i32")
    numbers = dict.fromkeys(("choices", "slots", "top_k"), "i32")
    yield Case("put", sorting.put_places, {"places": "*i64", **lists, **numbers}, known, sorting.OPTIONS, "i64")
    for dtype in _DTYPES:
        adding = {"answers": f"*{dtype}", "rows": "*i32", "weights": "*fp32", "y": f"*{dtype}", "hidden": "i32"}
        block = {"TOP_K": _TOP_K, "BLOCK": combining.BLOCK}
        yield Case("combine", combining.add_answers, adding, block, combining.OPTIONS, dtype)
        # Two loads may share a tile; int8 weights are used with half precision alone.
        tiles = {(gated, products.tile(load, gated, _DTYPES[dtype].itemsize)): load for gated, load in _PRODUCTS}
        for (gated, _), load in tiles.items():
            for weights in (dtype, "i8") if dtype == "fp16" else (dtype,):
                yield _product(load, gated, dtype, weights, hip)


def _product(load: products.Load, gated: bool, dtype: str, weights: str, hip: bool) -> Case:
    arrays = {"x": f"*{dtype}", "tokens": "*i32", "ends": "*i32", "weight": f"*{weights}", "scale": "*fp32"}
    numbers = dict.fromkeys(("slots", "outputs", "inputs", "x_stride"), "i32")
    of_torch = _DTYPES[dtype]
    activation: Any = "silu" if gated else None
    known = products.constants(load, gated, activation, gated, weights == "i8", _INPUTS, of_torch, hip)
    options = products.options(products.tile(load, gated, of_torch.itemsize))
    kinds = {**arrays, "y": f"*{dtype}", **numbers}
    return Case("gated product" if gated else "product", products.multiply_tiles, kinds, known, options, weights)


def _measure(case: Case, target: str, gpu: GPUTarget) -> KernelReport:
    usage = compile_ahead(case.function, case.kinds, case.constants, case.options, _ALIGNED, gpu)
    cut = tuple(case.constants[name] for name in ("ROWS", "COLUMNS", "DEPTH") if name in case.constants)
    shown: Any = cut or None
    return KernelReport(case.kernel, target, shown, case.weights, *usage)
