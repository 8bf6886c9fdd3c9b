"""What the expert kernels cost on a kind of GPU: compiled ahead of time for it, with no GPU at hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple, cast, get_args

import msgspec
import torch
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]

from moe.kernels import combining, products, sorting
from moe.kernels.ahead import compile_ahead, gpu_of
from moe.steps import Activation

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_SLOTS, _TOP_K = 64, 8
_EVEN, _UNEVEN = 2048, 2064
"""Numbers of a row that are whole tiles, and that are not."""
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
    variant: str
    """What else differs between two products in the same tile."""
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
    variant: str = ""


class Variant(NamedTuple):
    """Of a product: what layers have, besides tiles."""

    dtype: str
    weights: str
    activation: str | None
    gathered: bool
    inputs: int = _EVEN


_TOO_LARGE = products.Tile(256, 256, 32, 4, 2)


def report(target: str, every: bool = False) -> list[KernelReport]:
    """Compile every kernel with every tile that is shipped, for "sm_80" and its like or "gfx942" and its like: for
    the usual layers and those that take most or, with `every`, for all."""
    gpu = gpu_of(target)
    return [_measure(case, target, gpu) for case in cases(gpu.backend == "hip", every)]


def spilling(target: str) -> KernelReport:
    """A product whose tile no target has registers for: shows that the report would tell."""
    gpu = gpu_of(target)
    cut = _TOO_LARGE
    case = _product("many", False, Variant("fp16", "fp16", None, False), gpu.backend == "hip")
    sizes = {"ROWS": cut.rows, "COLUMNS": cut.columns, "DEPTH": cut.depth}
    return _measure(case._replace(constants=case.constants | sizes, options=products.options(cut)), target, gpu)


def cases(hip: bool, every: bool = False) -> Iterator[Case]:
    """Every kernel, and every tile of the products; two loads may share one."""
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
        tiles = {(gated, products.tile(load, gated, _DTYPES[dtype].itemsize)): load for gated, load in _PRODUCTS}
        for (gated, _), load in tiles.items():
            for variant in _variants(dtype, gated) if every else _some_variants(dtype, gated):
                yield _product(load, gated, variant, hip)


def _variants(dtype: str, gated: bool) -> Iterator[Variant]:
    """Rows are gathered for the first product of an expert, which has the activation; int8 weights are used with half
    precision alone."""
    kinds: list[tuple[str | None, bool]] = [(activation, True) for activation in get_args(Activation)]
    for weights in (dtype,) if dtype == "fp32" else (dtype, "i8"):
        for (activation, gathered), inputs in itertools.product(
            kinds if gated else [*kinds, (None, True), (None, False)], (_EVEN, _UNEVEN)
        ):
            yield Variant(dtype, weights, activation, gathered, inputs)


def _some_variants(dtype: str, gated: bool) -> Iterator[Variant]:
    usual = Variant(dtype, dtype, "silu" if gated else None, gated)
    most = Variant(dtype, "i8" if dtype == "bf16" else dtype, "gelu", True, _UNEVEN)
    yield from {"fp16": (usual, usual._replace(weights="i8"), most), "bf16": (most,), "fp32": (usual, most)}[dtype]


def _product(load: products.Load, gated: bool, variant: Variant, hip: bool) -> Case:
    dtype, weights, activation, gathered, inputs = variant
    arrays = {"x": f"*{dtype}", "tokens": "*i32", "ends": "*i32", "weight": f"*{weights}", "scale": "*fp32"}
    numbers = dict.fromkeys(("slots", "outputs", "inputs", "x_stride"), "i32")
    of_torch, how = _DTYPES[dtype], cast(Activation | None, activation)
    known = products.constants(load, gated, how, gathered, weights == "i8", inputs, of_torch, hip)
    options = products.options(products.tile(load, gated, of_torch.itemsize))
    kinds, name = {**arrays, "y": f"*{dtype}", **numbers}, "gated product" if gated else "product"
    said = f"{dtype}, {activation or 'plain'}{', gathered' * gathered}{', uneven' * (not known['EVEN'])}"
    return Case(name, products.multiply_tiles, kinds, known, options, weights, said)


def _measure(case: Case, target: str, gpu: GPUTarget) -> KernelReport:
    usage = compile_ahead(case.function, case.kinds, case.constants, case.options, _ALIGNED, gpu)
    cut = tuple(case.constants[name] for name in ("ROWS", "COLUMNS", "DEPTH") if name in case.constants)
    shown: Any = cut or None
    return KernelReport(case.kernel, target, shown, case.weights, case.variant, *usage)
