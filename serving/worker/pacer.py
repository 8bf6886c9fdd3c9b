"""Makes a paced worker's devices as slow as they shall be: what it computes takes `pace` times its own CPU time.

It waits at the end of a step, and before every exchange between the devices of a stage, as slower devices would: who
has more to do in a layer lets the others wait in that layer. What an exchange itself takes is not slowed down. Others
on the machine shall not show: CPU time does not count while they have the core, and where they slow it down from
beside (a sibling thread, a shared cache) a small product of always the same size tells by how much.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from serving.parallel import Collectives, Received

if TYPE_CHECKING:
    from torch import Tensor

ROWS, WIDTH = 64, 256
LOOK_S = 0.02
"""Between two looks at the core's speed."""
FRESH = 0.4
"""How much a look counts against those before."""


class CoreSpeed:
    """How many times as long as on a core of its own this thread's work takes now. The shortest time ever seen is taken
    for what the product takes there: others only ever add to it, and workers started at different moments agree."""

    def __init__(self) -> None:
        self._left, self._right = torch.ones(ROWS, WIDTH), torch.ones(WIDTH, WIDTH)
        self._out = torch.empty(ROWS, WIDTH)
        self._least_s = min(self._product_s() for _ in range(50))
        self._looked_s = 0.0
        self._recent = 1.0

    @property
    def slowness(self) -> float:
        return self._recent

    def look(self) -> None:
        if time.perf_counter() < self._looked_s + LOOK_S:
            return
        self._product_s()  # what it needs is in the caches now
        taken_s = self._product_s()
        self._least_s = min(self._least_s, taken_s)
        self._recent += FRESH * (taken_s / self._least_s - self._recent)
        self._looked_s = time.perf_counter()

    def _product_s(self) -> float:
        began_s = time.thread_time()
        torch.mm(self._left, self._right, out=self._out)
        return time.thread_time() - began_s


class Pacer:
    def __init__(self, pace: float) -> None:
        self._pace, self._speed = pace, CoreSpeed()
        self._began_s = self._used_s = 0.0

    def begin(self) -> None:
        """From now on it counts."""
        self._began_s, self._used_s = time.perf_counter(), time.thread_time()

    def keep(self) -> None:
        """Sleep until what was computed since has taken its time."""
        own_s = time.thread_time() - self._used_s
        self._speed.look()  # now: after a sleep the core is slow to wake, and would seem slower than the work was
        own_s /= self._speed.slowness
        time.sleep(max(self._began_s + self._pace * own_s - time.perf_counter(), 0.0))


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
