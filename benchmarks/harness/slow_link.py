"""A slow link, EMULATED: each rank's way out takes the time its bytes would take, shared evenly by what is under way.

The data really go through torch.distributed on this machine; what they carry waits here first. A transfer takes the
link for one small piece after the other, so two at once each get half, as two connections do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from moe.training import Group, Stream, Ticket

PIECE_BYTES = 1 << 14
LATENCY_S = 50e-6


class SlowLink:
    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_s = 0.0
        self._lock = threading.Lock()
        self.busy_s: dict[str, float] = {}
        """By kind of operation: from when it asked for the link until it was through."""

    def carry(self, kind: str, size: float) -> None:
        begin = at = time.perf_counter() + LATENCY_S
        while size > 0:
            piece = min(size, PIECE_BYTES)
            with self._lock:
                at = self._free_s = max(self._free_s, at) + piece / self.bytes_per_s
            size -= piece
            time.sleep(max(0.0, at - time.perf_counter()))
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + at - begin


class SlowGroup:
    """A group whose ranks are connected by slow links, sending in both directions at once."""

    def __init__(self, group: Group, link: SlowLink) -> None:
        self._group, self._link = group, link
        self.rank, self.size = group.rank, group.size

    def all_reduce(self, tensor: Tensor) -> None:
        self._link.carry("gradients", 2 * (self.size - 1) / self.size * tensor.nbytes)
        self._group.all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._link.carry("tokens", (self.size - 1) * tensor.nbytes)
        return self._group.all_gather(tensor)

    def all_to_all(self, arriving: Tensor, rows: Tensor, arrives: Sequence[int], leaves: Sequence[int]) -> None:
        travelling = max(sum(arrives) - arrives[self.rank], sum(leaves) - leaves[self.rank])
        self._link.carry("tokens", travelling * rows.shape[1] * rows.itemsize)
        self._group.all_to_all(arriving, rows, arrives, leaves)


class PlainCarrier:
    """What plain overlap does: each stream sends what it has when it has it, beside the others."""

    def __init__(self) -> None:
        self._lanes = {stream: ThreadPoolExecutor(1) for stream in Stream}

    def submit(self, stream: Stream, run: Callable[[], None]) -> Ticket:
        ticket = Ticket(run)
        self._lanes[stream].submit(_run, ticket)
        return ticket

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.shutdown()


def _run(ticket: Ticket) -> None:
    try:
        ticket.run()
    except Exception as error:  # the thread's boundary
        ticket.fail(error)
