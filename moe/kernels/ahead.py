"""Triton kernels compiled ahead of time for a kind of GPU, with none at hand: what each one takes there."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from placement.errors import InputError

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


class Usage(NamedTuple):
    """What a compiled kernel takes."""

    warps: int
    registers: int  # of a thread
    shared_bytes: int  # of a program
    spilled: int  # bytes of a thread's stack as ptxas says, or registers as the compiler for AMD does


def gpu_of(target: str) -> GPUTarget:
    """Of "sm_80" and its like, or "gfx942" and its like."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise InputError("TRITON_INTERPRET is 1: unset it, interpreted kernels are not compiled")
    if re.fullmatch(r"sm_\d{2,3}", target):
        return GPUTarget("cuda", int(target[3:]), 32)
    if re.fullmatch(r"gfx9[0-9a-f]{2}", target):
        return GPUTarget("hip", target, 64)
    raise InputError(f"target {target!r}: want a CUDA architecture such as sm_80, or a CDNA one such as gfx942")


def compile_ahead(
    function: Any,
    kinds: Mapping[str, str],
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    aligned: Collection[str],
    gpu: GPUTarget,
) -> Usage:
    """`kinds`: types of the arguments that are no constants; tensors, and the numbers named in `aligned`, are multiples
    of 16, as a model's are."""
    signature = {name: kinds.get(name, "constexpr") for name in function.arg_names}
    even = [n for n, (name, kind) in enumerate(signature.items()) if kind[0] == "*" or name in aligned]
    source = ASTSource(function, signature, dict(constants), {(n,): [["tt.divisibility", 16]] for n in even})
    compiled: Any = triton.compile(source, target=gpu, options=dict(options))
    registers, spilled = _cuda(compiled.asm["cubin"]) if gpu.backend == "cuda" else _hip(compiled.asm["amdgcn"])
    return Usage(compiled.metadata.num_warps, registers, compiled.metadata.shared, spilled)


def _cuda(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread, as cuobjdump of Triton's wheel reads them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = _USAGE.search(said)
    assert found, said
    return int(found[1]), int(found[2])


def _hip(text: str) -> tuple[int, int]:
    """Vector registers of a thread, and those that were spilled, as the compiler notes in its listing."""

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", text)
        assert found, name
        return int(found[1])

    return number("vgpr_count"), number("vgpr_spill_count") + number("sgpr_spill_count")
