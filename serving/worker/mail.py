"""The thread beside a worker's main thread that keeps its links: what comes in goes to one queue, in order.

The main thread computes and cannot answer heartbeats; this thread can, and ends the process when a peer is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from serving.worker.event_loop import new_event_loop

T = TypeVar("T")
LAST_WORDS_S = 0.3
"""How long a process may take to end once its group is lost; whatever it computes is of no use any more."""

_log = logging.getLogger(__name__)


class Mail:
    """`inbox` holds what arrived for the main thread. `on_lost` is told, once, why the group is lost."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.on_lost: Callable[[str], None] = lambda reason: None
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="mail", daemon=True)
        self._is_ending = False
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the mail's loop and wait for it; from the main thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def lost(self, reason: str) -> None:
        """On the loop: the group cannot go on. The process ends soon, even if the main thread is stuck."""
        if self._is_ending:
            return
        self._is_ending = True
        _log.error("%s", reason)
        self.on_lost(reason)
        self._loop.call_later(LAST_WORDS_S, os._exit, 1)

    def end(self) -> None:
        """From the main thread, at its end: what was posted goes out, and the links are closed."""
        self._is_ending = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LAST_WORDS_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
