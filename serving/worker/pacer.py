"""Makes a paced worker's devices as slow as they shall be: what it computes takes `pace` times its own CPU time.

It waits at the end of a step, and before every exchange between the devices of a stage, as slower devices would: who
has more to do in a layer lets the others wait in that layer. What an exchange itself takes is not slowed down. Others
on the machine shall not show: CPU time does not count while they have the core, and where they slow it down from
beside (a sibling thread, a shared cache) a small product of always the same size tells by how much.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import torch

from placement.cache import cache_folder
from placement.errors import InputError
from placement.files import read_document, write_json
from serving.parallel import Collectives, Received

if TYPE_CHECKING:
    from torch import Tensor

ROWS, WIDTH = 64, 256
LOOK_S = 0.02
"""Between two looks at the core's speed."""
FRESH = 0.4
"""How much a look counts against those before."""
PRODUCTS = 1000
"""Of which the shortest counts as what the product takes on a core of its own: others only ever add to it."""


class FreeCore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of a machine while it runs."""

    product_s: Annotated[float, msgspec.Meta(gt=0)]


class CoreSpeed:
    """How many times as long as on a core of its own this thread's work takes now. What the product takes there is
    found once for a machine and kept: workers agree whenever they start, and none gets faster the longer it looks."""

    def __init__(self, kept: Path | None = None) -> None:
        self._left, self._right = torch.ones(ROWS, WIDTH), torch.ones(WIDTH, WIDTH)
        self._out = torch.empty(ROWS, WIDTH)
        self._free_s = self._free_core_s(kept or cache_folder("cores") / f"{_machine()}.json")
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
        self._recent += FRESH * (taken_s / self._free_s - self._recent)
        self._looked_s = time.perf_counter()

    def _free_core_s(self, kept: Path) -> float:
        """The first worker that keeps it is right; where nothing can be kept, each one is for itself."""
        was_there = kept.exists()
        with suppress(InputError):
            return read_document(kept, FreeCore).product_s
        found = FreeCore(min(self._product_s() for _ in range(PRODUCTS)))
        mine = kept.with_name(f"{kept.name}.{os.getpid()}")
        with suppress(OSError, InputError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(mine, found)
            if was_there:  # damaged
                kept.unlink(missing_ok=True)
            with suppress(FileExistsError):
                os.link(mine, kept)
            mine.unlink()
            return read_document(kept, FreeCore).product_s
        return found.product_s

    def _product_s(self) -> float:
        began_s = time.thread_time()
        torch.mm(self._left, self._right, out=self._out)
        return time.thread_time() - began_s


def _machine() -> str:
    """This one, since it was started: many have the same name, and a cache may move from one to the next."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # no Linux
        return platform.node()


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
