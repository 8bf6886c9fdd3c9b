"""How the shards of one group exchange tensors: connect() gives a device its stage's collectives and its channels.

One process per device. On one machine's CPU they share memory; on GPUs and across machines they use torch.distributed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.parallel.base import Alone, Channel, Collectives, PeerLost, Received
from serving.parallel.layout import Layout

__all__ = ["Alone", "Backend", "Channel", "Collectives", "Layout", "Parallel", "PeerLost", "Received", "connect"]

Backend = Literal["shared", "gloo", "nccl"]
CONNECT_S = 60.0


@dataclass(frozen=True)
class Parallel:
    """What one device is connected to: the devices of its stage, and its place in the stages before and after."""

    tensor: Collectives
    previous: Channel | None = None
    next: Channel | None = None

    def abort(self, reason: str) -> None:
        """Let whatever waits raise PeerLost(reason); may be called from any thread."""
        for part in (self.tensor, self.previous, self.next):
            if part is not None:
                part.abort(reason)

    def close(self) -> None:
        for part in (self.tensor, self.previous, self.next):
            if part is not None:
                part.close()


def connect(layout: Layout, rendezvous: str | Path, backend: Backend = "shared", wait_s: float = CONNECT_S) -> Parallel:
    """Meet the other devices of the group, each of which calls this too, and connect to the neighbours.

    `rendezvous`: for shared memory, a directory of this group alone, closed to other users; otherwise where
    torch.distributed's store is, as tcp://host:port (rank 0 serves it there) or file:///path. Raises PeerLost with
    the ranks that did not come in time.
    """
    if layout.devices == 1:
        return Parallel(Alone())
    if backend == "shared":
        from serving.parallel.local import connect_local

        return connect_local(layout, Path(rendezvous), wait_s)
    from serving.parallel.remote import connect_remote

    return connect_remote(layout, str(rendezvous), backend == "nccl", wait_s)
