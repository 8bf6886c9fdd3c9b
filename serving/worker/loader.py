"""The thread beside a worker's main thread that reads models, so that the steps of others go on meanwhile.

Reading and packing weights is almost all work of torch, which does not keep the main thread from running Python; both
share the core. Models are read one after the other, in the order asked.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable

from placement.errors import InputError

TURN_S = 0.0005
"""How long a thread may keep others from running Python: a step must not wait for the reading of a model."""

MOVER_NICE = 10
"""Of moving experts: a step shall hardly be longer for it, however long it takes."""

Work = Callable[[], None]
OnDone = Callable[[str], object]


class Loader:
    """`on_broken` hears, on this thread, of a failure that is not the model's: the worker cannot go on. With `nice`,
    as for processes, the steps of others come first where there is work for both."""

    def __init__(self, on_broken: Callable[[Exception], None], nice: int = 0) -> None:
        self._on_broken = on_broken
        self._nice = nice
        sys.setswitchinterval(TURN_S)
        self._orders: queue.SimpleQueue[tuple[Work, OnDone]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="loader", daemon=True).start()

    def submit(self, work: Work, done: OnDone) -> None:
        """`done` is called on this thread with what is wrong with the model, or nothing."""
        self._orders.put((work, done))

    def _run(self) -> None:
        if self._nice and sys.platform == "linux":  # where a thread has a priority of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + self._nice)
        while True:
            work, done = self._orders.get()
            try:
                work()
            except InputError as error:
                done(str(error))
            except Exception as error:  # the thread's boundary
                self._on_broken(error)
            else:
                done("")
