"""What may block, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def aside(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.to_thread(work, *arguments)


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Whoever cancels waits until it is done: a job that is being started must be known before anything else is."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
