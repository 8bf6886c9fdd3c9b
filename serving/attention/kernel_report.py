"""What the GPU kernels cost on a kind of GPU: compiled ahead of time for it, with no GPU at hand."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import torch
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]

from moe.kernels.ahead import compile_ahead, gpu_of
from serving.attention import triton_paged

HEAD_DIMS = (64, 128, 256)
"""Every size of tile."""
PADDED_DIMS = (80, 96, 192)
"""Sizes that models have, padded to one of the tiles'."""
GROUPS = (1, 4, 16)
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_KV_HEADS, _BLOCK_SIZE = 8, 16
_ALIGNED = ("query_stride", "key_stride", "value_stride")


class KernelReport(msgspec.Struct, frozen=True):
    """One kernel, compiled for one target."""

    kernel: str  # "decode", "prefill" or "store"
    target: str
    dtype: str
    head_dim: int
    group: int
    warps: int
    registers: int  # of a thread
    shared_bytes: int  # of a program
    spilled: int  # as ahead.Usage says


def report(target: str, every: bool = False) -> list[KernelReport]:
    """Compile every kernel that is shipped, for "sm_80" and its like or "gfx942" and its like: for some kinds of head
    or, with `every`, for all."""
    gpu = gpu_of(target)
    heads = list(itertools.product(_DTYPES, sorted(HEAD_DIMS + PADDED_DIMS), GROUPS)) if every else _some_heads()
    attending = itertools.product(("decode", "prefill"), heads)
    stored = [("store", (dtype, HEAD_DIMS[-1], 1)) for dtype in _DTYPES]
    return [_measure(kernel, *head, target, gpu) for kernel, head in [*attending, *stored]]


def _some_heads() -> list[tuple[str, int, int]]:
    """Dtype, size, and heads of a group: each size of tile, and each of the others once."""
    usual = list(itertools.product(("fp16", "fp32"), HEAD_DIMS, (4,)))
    return [*usual, ("bf16", 80, 1), ("fp16", 96, 16), ("fp32", 96, 1), ("bf16", 192, 16)]


def _measure(kernel: str, dtype: str, head_dim: int, group: int, target: str, gpu: GPUTarget) -> KernelReport:
    function, kinds, constants, options = (
        _store(dtype, head_dim) if kernel == "store" else _attend(kernel, dtype, head_dim, group, gpu.backend == "hip")
    )
    usage = compile_ahead(function, kinds, constants, options, _ALIGNED, gpu)
    return KernelReport(kernel, target, dtype, head_dim, group, *usage)


def _attend(
    kernel: str, dtype: str, head_dim: int, group: int, hip: bool
) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]:
    """The kernel, its arguments' types, constants and options."""
    prefill = kernel == "prefill"
    cache = (1, _KV_HEADS, _BLOCK_SIZE, head_dim)
    constants = triton_paged.constants(prefill, group, cache, _DTYPES[dtype], hip)
    tensors = dict.fromkeys(("query", "key_cache", "value_cache", "out"), f"*{dtype}")
    indices = dict.fromkeys(("tables", "starts", "lens"), "*i32")
    numbers = {"scale": "fp32", **dict.fromkeys(("window", "sequences", "table_stride", "query_stride"), "i32")}
    options = triton_paged.options(prefill, head_dim, _DTYPES[dtype], hip)
    return triton_paged.attend, tensors | indices | numbers, constants, options


def _store(dtype: str, head_dim: int) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, Any]]:
    tensors = dict.fromkeys(("key", "value", "key_cache", "value_cache"), f"*{dtype}")
    numbers = {"slots": "*i64", "key_stride": "i32", "value_stride": "i32"}
    constants = triton_paged.store_constants((1, _KV_HEADS, _BLOCK_SIZE, head_dim))
    return triton_paged.store, tensors | numbers, constants, {"enable_fp_fusion": True}
