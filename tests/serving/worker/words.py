"""The messages of the links' tests, and small helpers that their processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[3]


class Say(msgspec.Struct, tag=True, frozen=True):
    number: int
    body: bytes = b""


class Count(msgspec.Struct, tag=True, frozen=True):
    seen: int


Words = Say | Count


async def until(condition: Callable[[], object], seconds: float = 10.0) -> float:
    """Wait for it; returns how long that took."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while not condition():
        assert loop.time() - begin < seconds, "waited in vain"
        await asyncio.sleep(0.005)
    return loop.time() - begin


def fds() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}
