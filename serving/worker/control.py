"""Where a group's leader waits for its controller, and the one link that comes of it. Knows nothing of what is ordered.

The first controller that comes is the group's; another is turned away.
"""

from __future__ import annotations

from collections.abc import Callable

from serving.worker.document import WorkerDocument
from serving.worker.link import Link
from serving.worker.listener import Listener, listen
from serving.worker.messages import Order, Report
from serving.worker.settings import LinkSettings

CONTROLLER_LIFE_S = 30.0
"""A controller that dies on this machine closes its link at once; a busy one must not cost a group its life."""


class Control:
    """`on_open` when it has come, `on_order` for each order, `on_lost` with the reason when it is gone."""

    def __init__(
        self,
        document: WorkerDocument,
        on_open: Callable[[], None],
        on_order: Callable[[Order], None],
        on_lost: Callable[[str], None],
        least_life_s: float = CONTROLLER_LIFE_S,
    ) -> None:
        self.link: Link[Report, Order] | None = None
        self._document = document
        self._on_open, self._on_order, self._on_lost = on_open, on_order, on_lost
        self._settings = LinkSettings(life_s=max(least_life_s, document.life_s), ping_s=document.life_s / 4)
        self._listener: Listener[Report, Order] | None = None

    async def listen(self) -> None:
        """At the document's address."""
        document = self._document
        self._listener = await listen(
            document.control,
            Order,
            self._take,
            lambda _, order: self._on_order(order),
            self._lose,
            secret=document.secret.encode() if document.secret else None,
            settings=self._settings,
        )

    def report(self, message: Report) -> None:
        """To the controller, if it is there."""
        if self.link is not None:
            self.link.send(message)

    def wait_no_more(self) -> None:
        """Take no other controller, not even to turn it away."""
        if self._listener is not None:
            self._listener.close()

    def close(self, reason: str) -> None:
        self.wait_no_more()
        if self.link is not None:
            self.link.close(reason)

    def _take(self, link: Link[Report, Order]) -> None:
        if self.link is not None:
            link.close(f"group {self._document.group} has a controller already")
            return
        self.link = link
        self._on_open()

    def _lose(self, link: Link[Report, Order], reason: str) -> None:
        if link is self.link:
            self._on_lost(reason)
