"""What the GPU kernels cost on a kind of GPU: compiled ahead of time for it, with no GPU at hand."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import tempfile
from typing import Any

import msgspec
import torch
import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from placement.errors import InputError
from serving.attention import triton_paged

HEAD_DIMS = (64, 128, 256)  # every size of tile; a head of another size is padded to one of these or smaller
_DTYPES = {"fp16": torch.float16, "fp32": torch.float32}  # bf16 compiles to what fp16 does
_GROUP, _KV_HEADS, _BLOCK_SIZE = 4, 8, 16
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


class KernelReport(msgspec.Struct, frozen=True):
    """One kernel, compiled for one target."""

    kernel: str  # "decode", "prefill" or "store"
    target: str
    dtype: str
    head_dim: int
    warps: int
    registers: int  # of a thread
    shared_bytes: int  # of a program
    spilled_bytes: int  # of a thread: the stack that ptxas gave it


def report(target: str) -> list[KernelReport]:
    """Compile every kernel that is shipped, for "sm_80" or another CUDA architecture, and say what each one takes."""
    if not re.fullmatch(r"sm_\d{2,3}", target):
        raise InputError(f"target {target!r}: want a CUDA architecture, such as sm_80")
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise InputError("TRITON_INTERPRET is 1: unset it, interpreted kernels are not compiled")
    gpu = GPUTarget("cuda", int(target[3:]), 32)
    return [
        _measure(kernel, dtype, head_dim, target, gpu)
        for kernel, dtype, head_dim in itertools.product(("decode", "prefill", "store"), _DTYPES, HEAD_DIMS)
        if kernel != "store" or head_dim == HEAD_DIMS[-1]
    ]


def _measure(kernel: str, dtype: str, head_dim: int, target: str, gpu: GPUTarget) -> KernelReport:
    source, options = _store_source(dtype, head_dim) if kernel == "store" else _source(kernel, dtype, head_dim)
    compiled: Any = triton.compile(source, target=gpu, options=options)
    registers, stack = _usage(compiled.asm["cubin"])
    metadata = compiled.metadata
    return KernelReport(kernel, target, dtype, head_dim, metadata.num_warps, registers, metadata.shared, stack)


def _source(kernel: str, dtype: str, head_dim: int) -> tuple[ASTSource, dict[str, Any]]:
    prefill = kernel == "prefill"
    cache = (1, _KV_HEADS, _BLOCK_SIZE, head_dim)
    constants = triton_paged.constants(prefill, _GROUP, cache, _DTYPES[dtype])
    tensors = dict.fromkeys(("query", "key_cache", "value_cache", "out"), f"*{dtype}")
    indices = dict.fromkeys(("tables", "starts", "lens"), "*i32")
    numbers = {"scale": "fp32", **dict.fromkeys(("window", "sequences", "table_stride", "query_stride"), "i32")}
    options = triton_paged.options(prefill, head_dim, _DTYPES[dtype])
    return _ast(triton_paged.attend, tensors | indices | numbers, constants), options


def _store_source(dtype: str, head_dim: int) -> tuple[ASTSource, dict[str, Any]]:
    tensors = dict.fromkeys(("key", "value", "key_cache", "value_cache"), f"*{dtype}")
    numbers = {"slots": "*i64", "key_stride": "i32", "value_stride": "i32"}
    constants = triton_paged.store_constants((1, _KV_HEADS, _BLOCK_SIZE, head_dim))
    return _ast(triton_paged.store, tensors | numbers, constants), {"enable_fp_fusion": True}


def _ast(function: Any, kinds: dict[str, str], constants: dict[str, Any]) -> ASTSource:
    """A kernel with its arguments' types, tensors and their rows aligned as a model's are."""
    signature = {name: kinds.get(name, "constexpr") for name in function.arg_names}
    strides = ("query_stride", "key_stride", "value_stride")
    aligned = [n for n, (name, kind) in enumerate(signature.items()) if kind.startswith("*") or name in strides]
    return ASTSource(function, signature, constants, {(n,): [["tt.divisibility", 16]] for n in aligned})


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread, as cuobjdump of Triton's wheel reads them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = _USAGE.search(said)
    assert found, said
    return int(found[1]), int(found[2])
