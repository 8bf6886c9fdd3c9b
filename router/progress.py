"""What tickets tell of their requests, and what then becomes of them: answered, cancelled, failed, or tried again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from placement.dispatch import SERVED
from router.hall import Hall
from router.request import NotServed, Reason
from router.ticket import Stage, Ticket

if TYPE_CHECKING:
    from router.generating import GeneratingDesk

G = TypeVar("G")

Lost = tuple[type[Exception], ...] | Callable[[Exception], bool]


class Progress(Generic[G]):
    """`changed` is called after each end with the time, `regroup` when a group was found to be gone."""

    def __init__(
        self,
        hall: Hall[G],
        generating: GeneratingDesk[G],
        lost: Lost,
        most_waiting: int,
        now: Callable[[], float],
        changed: Callable[[float], None],
        regroup: Callable[[], None],
    ) -> None:
        self._hall = hall
        self._generating = generating
        self._lost = lost
        self._most_waiting = most_waiting
        self._now = now
        self._changed = changed
        self._regroup = regroup

    def first(self, ticket: Ticket[G, Any]) -> None:
        """Its first item has come; of a one-pass request that is the answer."""
        now = ticket.first_at = self._now()
        if ticket.stage is not Stage.RUNNING:
            return
        if ticket.generates:
            self._generating.first(ticket, now)
        else:
            self.done(ticket)

    def token(self, ticket: Ticket[G, Any]) -> None:
        self._generating.token(ticket, self._now())

    def done(self, ticket: Ticket[G, Any]) -> None:
        """There is nothing more to come, or nothing more is wanted."""
        if ticket.stage is Stage.RUNNING:
            now = self._now()
            ticket.desk.ended(ticket, now, was_answered=True)
            self._hall.finish(ticket, now)
            self._changed(now)

    def cancelled(self, ticket: Ticket[G, Any]) -> None:
        now = self._now()
        if ticket.stage is Stage.WAITING:
            ticket.desk.withdraw(ticket)
            ticket.error = NotServed("cancelled", "the request was cancelled")
            self._hall.give_up(ticket, "cancelled", now)
            ticket.wake()
        elif ticket.stage is Stage.RUNNING:
            self._give_up(ticket, "cancelled", now)

    def failed(self, ticket: Ticket[G, Any], error: Exception) -> bool:
        """`run` raised. True: its group is gone, and it is told what to do next; else the error is the request's."""
        if ticket.stage is not Stage.RUNNING:
            return False
        if self._means_lost(error):
            self._lose(ticket, error)
            return True
        self._give_up(ticket, "failed", self._now())
        return False

    def _give_up(self, ticket: Ticket[G, Any], reason: Reason, now: float) -> None:
        ticket.desk.ended(ticket, now, was_answered=False)
        self._hall.give_up(ticket, reason, now)
        self._changed(now)

    def _means_lost(self, error: Exception) -> bool:
        return isinstance(error, self._lost) if isinstance(self._lost, tuple) else self._lost(error)

    def _lose(self, ticket: Ticket[G, Any], error: Exception) -> None:
        """Its group is gone: once, and before its first item, it is offered again; else it has failed."""
        member, now, hall = ticket.member, self._now(), self._hall
        assert member is not None
        if not member.lost:
            member.lost = str(error) or "gone"
            self._regroup()
        ticket.desk.ended(ticket, now, was_answered=False)
        hall.take_back(ticket)
        is_offered = ticket.items == 0 and not ticket.is_retried and hall.waiting < self._most_waiting
        if is_offered:
            ticket.is_retried = True
            ticket.statistics.retried += 1
            is_offered = ticket.desk.arrive(ticket, now) == SERVED
        if not is_offered:
            begun = "in the middle of the answer" if ticket.items else "and no other group can answer in time"
            hall.drop(ticket, "failed", f"group {member.name} was lost ({member.lost}) {begun}", now)
        self._changed(now)
