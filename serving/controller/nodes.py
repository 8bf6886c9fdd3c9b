"""Follows a cluster whose nodes come and go: devices of those that left are taken out of the ledger, and a plan is made
for what is there now.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from placement.cluster import Cluster
from placement.errors import InputError
from serving.controller.controller import Controller
from serving.controller.replan import Replanner
from serving.controller.steady import steadily

LOOK_S = 1.0
AGAIN_S = 10.0
"""Between two attempts to plan for nodes for which no plan was found."""


class NodeKeeper:
    """`find` says which nodes are there now; an InputError: none that could serve. `on_move`: who else must know."""

    def __init__(
        self,
        controller: Controller,
        replanner: Replanner,
        find: Callable[[], Awaitable[Cluster]],
        on_move: Callable[[Cluster], None] | None = None,
    ) -> None:
        self._controller, self._replanner, self._find, self._on_move = controller, replanner, find, on_move
        self._unplanned = ""
        self._tried = 0.0

    async def run(self) -> None:
        """For ever."""
        rehearsal = asyncio.create_task(self._rehearse(), name="rehearsal of a plan")
        try:
            await steadily(LOOK_S, self.look, self._controller.journal, "nodes")
        finally:
            rehearsal.cancel()
            await asyncio.gather(rehearsal, return_exceptions=True)

    async def _rehearse(self) -> None:
        """Beside the looks: a node may leave meanwhile."""
        try:
            await self._replanner.rehearse()
        except InputError as error:
            self._controller.journal.note("nodes", "nodes", "no plan could be rehearsed", reason=str(error))

    async def look(self) -> None:
        """Take up what has changed since the last time."""
        controller = self._controller
        before, now = controller.problem.cluster, await self._find()
        if now != before:
            self._unplanned = _difference(before, now)
            await controller.move(now, self._unplanned)
            self._tried = 0.0
            if self._on_move is not None:
                self._on_move(now)
        if self._unplanned and time.monotonic() > self._tried + AGAIN_S:
            self._tried = time.monotonic()
            await self._replanner.plan_anew(self._unplanned)
            self._unplanned = ""


def _difference(before: Cluster, now: Cluster) -> str:
    """In words, of nodes by name."""
    old, new = ({node.name: node for node in cluster.nodes} for cluster in (before, now))
    changes = {
        "left": [name for name in old if name not in new],
        "joined": [name for name in new if name not in old],
        "changed": [name for name in new if name in old and new[name] != old[name]],
    }
    return "; ".join(f"node {', '.join(names)} {what}" for what, names in changes.items() if names)
