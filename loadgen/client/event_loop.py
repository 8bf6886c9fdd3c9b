"""The event loop of the client: uvloop's where it is installed; Ctrl-C asks it to stop instead of tearing it down."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def run_on_loop(make: Callable[[], Awaitable[T]]) -> T:
    async def run() -> T:
        return await make()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


@contextlib.contextmanager
def interrupting(stop: asyncio.Event) -> Iterator[None]:
    """Ctrl-C sets `stop` while the block runs, where signals can be caught."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, stop.set)
    except (NotImplementedError, RuntimeError, ValueError):  # another system, or not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
