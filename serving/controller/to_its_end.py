"""Work that is not broken off halfway."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Whoever is cancelled meanwhile, however often, waits for its end all the same."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        raise
