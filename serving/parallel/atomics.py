"""What compiled code needs to share memory between processes: ordered loads and stores, and a few calls to the system.

Addresses are plain integers. numba's cache sees changes only in the file of a function that Python calls: after a
change here, touch those (signals.py, summing.py).
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_helpers: Any = cgutils
_types: Any = types
_WORD = ir.IntType(64).as_pointer()
_MACHINE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}

FUTEX = {"x86_64": 202, "aarch64": 98}.get(_MACHINE, 0) if sys.platform == "linux" else 0
"""The number of Linux's call to sleep until a word changes; 0 where there is none."""


def _load(context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], _WORD), "acquire", 8)

    return types.int64(types.int64), generate


def _store(context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], _WORD), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _fence(context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def _pause(context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _MACHINE in _PAUSES:
            name, numbers = _PAUSES[_MACHINE]
            i32 = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [i32] * len(numbers))
            builder.call(_helpers.get_or_insert_function(builder.module, kind, name), [i32(n) for n in numbers])
        return context.get_dummy_value()

    return types.void(), generate


def _pointer_to(item: Any) -> Any:
    def pointer(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return _types.CPointer(item)(types.int64), generate

    return intrinsic(pointer)


load: Any = intrinsic(_load)
"""load(address): the word there, and all that was written before it was stored."""
store: Any = intrinsic(_store)
"""store(address, value): after all that was written before."""
fence: Any = intrinsic(_fence)
"""fence(): what was stored before is seen by all before anything later is loaded."""
pause: Any = intrinsic(_pause)
"""pause(): tells the processor that this is a loop that waits; some 25 ns."""
floats: Any = _pointer_to(types.float32)
shorts: Any = _pointer_to(types.int16)

_call: Any = types.ExternalFunction
memcpy: Any = _call("memcpy", types.int64(types.int64, types.int64, types.int64))
poll: Any = _call("poll", types.int32(types.int64, types.int64, types.int32))
sched_yield: Any = _call("sched_yield", types.int32())
syscall: Any = _call("syscall", types.int64(*(types.int64,) * 7))
