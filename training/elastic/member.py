"""One worker as the coordinator of its job knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from serving.worker.launcher import Handle
from serving.worker.link import Link
from training.elastic.messages import Orders, Reports, Save

MemberState = Literal["starting", "waiting", "training", "parking", "parked", "finishing", "yielding", "leaving"]
"""parking: without a device, but still in its step; parked: it waits in memory, and computes nothing; yielding: it
finishes without a device."""


@dataclass(eq=False)
class Member:
    """`step`: how many steps its state has seen, -1 without one; `saved`: how many the checkpoint that it was asked
    for has."""

    name: str
    device: str
    node: str = ""
    """Of a cluster; where it is parked it can go on there alone."""
    handle: Handle | None = None
    link: Link[Orders, Reports] | None = None
    state: MemberState = "starting"
    step: int = -1
    saved: int = -1
    is_saving: bool = False
    _timer: asyncio.TimerHandle | None = None

    @property
    def is_saved(self) -> bool:
        return self.saved >= self.step

    @property
    def is_aside(self) -> bool:
        """It keeps nobody from its device."""
        return self.state in ("parked", "yielding")

    def send(self, order: Orders) -> None:
        assert self.link is not None
        self.link.send(order)

    def save(self) -> None:
        """Once."""
        if not self.is_saving:
            self.is_saving = True
            self.send(Save())

    def kill(self) -> None:
        if self.handle is not None:
            self.handle.kill()

    def wait(self, wait_s: float, then: Callable[[Member], None]) -> None:
        """Instead of what was waited for before."""
        self.stop_waiting()
        self._timer = asyncio.get_running_loop().call_later(wait_s, then, self)

    def stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
