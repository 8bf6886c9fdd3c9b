"""What may block, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def aside(work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.to_thread(work, *arguments)
