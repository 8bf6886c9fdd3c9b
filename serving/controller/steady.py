"""Work that is done again and again beside the requests, and survives what goes wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from serving.controller.journal import Journal, Subject


async def steadily(every_s: float, look: Callable[[], Awaitable[None]], journal: Journal, subject: Subject) -> None:
    """For ever; an error is noted, once while it stays the same, and the next look comes in time."""
    trouble = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            await look()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if reason != trouble:
                journal.note(subject, subject, "failed", reason=reason)
            trouble = reason
        else:
            trouble = ""
