"""Where a group's processes are started and meet: a folder of this machine, or a room that others hold for it. The
other half of the seam between one machine and many, beside the launcher.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from serving.parallel import Backend
from serving.worker.places import Tcp


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Open as long as its group has processes."""

    backend: Backend = "shared"
    """How the group's devices exchange tensors."""
    tcp: Tcp | None = None
    """Links over TCP; without it, over sockets of this machine."""


OpenRoom = Callable[[str, tuple[str, ...]], AbstractAsyncContextManager[Room]]
"""(name of the group, its devices as the plan names them). An InputError says why there is none."""


@asynccontextmanager
async def local_room(group: str, devices: tuple[str, ...]) -> AsyncIterator[Room]:
    """This machine has room for any group."""
    yield Room()
