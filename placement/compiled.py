"""How the hot functions are compiled: numba, without reference counting (they own no memory), entry points cached.

The cache's folder is named after the sources of all compiled code, since numba itself notices a change only in the
file of the entry point and would run stale callees. PENSTOCK_CACHE moves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.extending import register_jitable

from placement.cache import cache_folder

F = TypeVar("F", bound=Callable[..., object])

# Counting the references of every array of a tuple at every call cost four times the work itself.
_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "_nrt": False}
# What only compiled code calls needs no door for Python; making one takes longer than the function itself.
_INNER = _OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: F) -> F:
    """Compile a function of scalars, arrays and named tuples of arrays that allocates nothing, inlined where called:
    a call would pass every field of every array of a tuple."""
    return cast(F, _once(numba.njit(forceinline=True, **_INNER)(function)))


def compiled_apart(function: F) -> F:
    """Compile the same, but called: for what is large and rarely reached."""
    return cast(F, _once(numba.njit(**_INNER)(function)))


def entry_point(function: F) -> F:
    """Compile a function that Python calls, and keep the machine code on disk."""
    return cast(F, numba.njit(cache=True, **_OPTIONS)(function))


def inlined(function: F) -> F:
    """Compile it into its callers; Python calls it as it is written."""
    return register_jitable(forceinline=True, **_OPTIONS)(function)


def _once(dispatcher: Any) -> Any:
    """Let it not be compiled again for arguments that are literals: type inference asks for that on its way."""
    if getattr(numba.config, "DISABLE_JIT", False):
        return dispatcher
    resolve = dispatcher.get_call_template
    unliteral: Any = numba.types.unliteral

    def resolve_plain(args: tuple[Any, ...], kws: dict[str, Any]) -> Any:
        plain = tuple(unliteral(arg) for arg in args)
        return resolve(plain, {name: unliteral(arg) for name, arg in kws.items()})

    dispatcher.get_call_template = resolve_plain
    return dispatcher


def _cache_folder() -> Path:
    here = Path(__file__).parent
    folders = (here, *(here.parent / name for name in ("moe", "router", "serving", "training")))
    texts = [path.read_bytes() for folder in folders for path in sorted(folder.rglob("*.py"))]
    marks = (b"numba", b"placement.compiled", b"entry_point")
    digest = hashlib.sha256(b"".join(text for text in texts if any(mark in text for mark in marks)))
    return cache_folder("compiled") / digest.hexdigest()[:16]


setattr(numba.config, "CACHE_DIR", str(_cache_folder()))  # noqa: B010  (numba does not declare it)
