"""Makes a paced worker's devices as slow as they shall be: what it computes takes `pace` times its own CPU time.

It waits at the end of a step, and before every exchange between the devices of a stage, as slower devices would: who
has more to do in a layer lets the others wait in that layer. What an exchange itself takes is not slowed down.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serving.parallel import Collectives, Received

if TYPE_CHECKING:
    from torch import Tensor


class Pacer:
    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._began_s = self._used_s = 0.0

    def begin(self) -> None:
        """From now on it counts."""
        self._began_s, self._used_s = time.perf_counter(), time.thread_time()

    def keep(self) -> None:
        """Sleep until what was computed since has taken its time; what others did on this core does not count."""
        used_s = time.thread_time() - self._used_s
        time.sleep(max(self._began_s + self._pace * used_s - time.perf_counter(), 0.0))


class PacedCollectives:
    """Collectives of devices that are paced."""

    def __init__(self, inner: Collectives, pacer: Pacer) -> None:
        self._inner, self._pacer = inner, pacer
        self.rank, self.size = inner.rank, inner.size

    def all_reduce(self, tensor: Tensor) -> None:
        self._pacer.keep()
        self._inner.all_reduce(tensor)
        self._pacer.begin()

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._pacer.keep()
        gathered = self._inner.all_gather(tensor)
        self._pacer.begin()
        return gathered

    def gather(self, tensor: Tensor) -> Tensor | None:
        self._pacer.keep()
        gathered = self._inner.gather(tensor)
        self._pacer.begin()
        return gathered

    def all_to_all(self, rows: Tensor, counts: Sequence[int]) -> Received:
        self._pacer.keep()
        received = self._inner.all_to_all(rows, counts)
        self._pacer.begin()
        return received

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)

    def close(self) -> None:
        self._inner.close()
