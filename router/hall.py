"""Where all tickets are while they wait and run: how they move on, and the counts that go with it.

The desks share it. It decides nothing.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from router.fair_share import FairShare
from router.headroom import PRESSURE_S, Headroom
from router.live_group import Member
from router.pool import Pool
from router.request import PRIORITIES, NotServed, Reason
from router.statistics import Refusal, Statistics
from router.ticket import Stage, Ticket

G = TypeVar("G")

HAIR_S = 1e-6
"""What rounding may make of a time."""

RELOAD_S = 5.0
"""In how many seconds a model without a ready group is likely to have one again when nobody knows better."""

PATIENCE_S = 60.0
"""So long at most one who was admitted waits for a model that no group serves any more."""


class Hall(Generic[G]):
    """`pool`: the groups in use as they are now."""

    def __init__(self, pool: Pool[G], overhead_s: float, evens_models: bool) -> None:
        self.pool = pool
        self.tickets: dict[int, Ticket[G, Any]] = {}
        self.statistics = Statistics()
        self.fair = FairShare(len(PRIORITIES))
        self.headroom = Headroom(pool.models, len(PRIORITIES), evens_models)
        self.waiting = self.waiting_tokens = 0
        self.back_by: Mapping[str, float] = {}
        """When models that no group serves are expected to be served, where that is known."""
        self.wake_s: Callable[[str], float] = lambda model: 0.0
        """How long a generating model that is asleep wherever it is will take to be awake."""
        self.overhead_s = overhead_s
        """What an answer takes beside its group's work; goals on tickets are without it."""
        self._too_late: list[tuple[float, int]] = []

    # Into the hall and through it

    def wait(self, ticket: Ticket[G, Any], now: float) -> None:
        """It is admitted and has not begun."""
        ticket.stage = Stage.WAITING
        self.waiting += 1
        self.waiting_tokens += ticket.request.tokens
        ticket.statistics.waiting += 1
        ticket.statistics.tokens_queued += ticket.request.tokens
        self.fair.join(ticket, now)

    def start(self, ticket: Ticket[G, Any], member: Member[G], now: float) -> None:
        """Its group takes it."""
        if ticket.stage is Stage.WAITING:
            self._stop_waiting(ticket)
        ticket.stage = Stage.RUNNING
        ticket.member = member
        member.running += 1
        member.started += 1
        ticket.statistics.running += 1
        ticket.wake()

    def take_back(self, ticket: Ticket[G, Any]) -> None:
        """It runs nowhere any more, and may be offered again."""
        assert ticket.member is not None
        ticket.member.running -= 1
        ticket.statistics.running -= 1
        ticket.stage = Stage.NEW
        ticket.member = ticket.batch = None

    # Out of it

    def finish(self, ticket: Ticket[G, Any], now: float) -> None:
        """It was answered."""
        counts, goals = ticket.statistics, ticket.goals
        counts.served += 1
        late_by = self.overhead_s + HAIR_S
        first = ticket.first_at if ticket.generates and ticket.items else now
        met = first - ticket.arrived <= goals.first_s + late_by
        if ticket.generates and ticket.items > 1:
            tpot_s = (now - ticket.first_at) / max(ticket.items / ticket.request.answers - 1, 1)
            met = met and tpot_s <= goals.token_s + HAIR_S and now - ticket.arrived <= goals.last_s + late_by
        counts.met += met
        counts.window.add(now, met)
        self._end(ticket)

    def give_up(self, ticket: Ticket[G, Any], reason: Reason, now: float) -> None:
        """It ends without an answer, or in the middle of one; who iterates knows why."""
        ticket.statistics.end_without(reason, now)
        self._end(ticket)

    def drop(self, ticket: Ticket[G, Any], reason: Reason, message: str, now: float) -> None:
        """It ends without an answer, and is told why."""
        error = NotServed(reason, message, self._retry_s(ticket, reason, now))
        self.remember(ticket, error, None, now)
        ticket.error = error
        self.give_up(ticket, reason, now)
        ticket.wake()

    def _end(self, ticket: Ticket[G, Any]) -> None:
        if ticket.stage is Stage.WAITING:
            self._stop_waiting(ticket)
        elif ticket.stage is Stage.RUNNING:
            self.take_back(ticket)
        ticket.stage = Stage.ENDED
        del self.tickets[ticket.number]

    def _stop_waiting(self, ticket: Ticket[G, Any]) -> None:
        self.waiting -= 1
        self.waiting_tokens -= ticket.request.tokens
        ticket.statistics.waiting -= 1
        ticket.statistics.tokens_queued -= ticket.request.tokens
        self.fair.leave(ticket)

    # Who is too late

    @property
    def next_too_late(self) -> float:
        return self._too_late[0][0] if self._too_late else math.inf

    def watch(self, ticket: Ticket[G, Any], until: float) -> None:
        """Tell when this has passed and it still waits."""
        if until == math.inf:
            return
        heapq.heappush(self._too_late, (until + HAIR_S, ticket.number))
        if len(self._too_late) > 2 * len(self.tickets) + 1024:  # most are long gone
            self._too_late = [one for one in self._too_late if one[1] in self.tickets]
            heapq.heapify(self._too_late)

    def too_late(self, now: float) -> Iterator[Ticket[G, Any]]:
        """Those who were watched, whose time has passed, and who still wait."""
        while self._too_late and self._too_late[0][0] <= now:
            ticket = self.tickets.get(heapq.heappop(self._too_late)[1])
            if ticket is not None and ticket.stage is Stage.WAITING:
                yield ticket

    # Why not

    def reload_s(self, model: str, now: float) -> float:
        """In how many seconds a model that no group serves is likely to be served."""
        back_by = self.back_by.get(model)
        return RELOAD_S if back_by is None else max(back_by - now, 0.0)

    def _retry_s(self, ticket: Ticket[G, Any], reason: Reason, now: float) -> float | None:
        match reason:
            case "no-replica":
                return self.reload_s(ticket.request.model, now)
            case "expired" | "failed":
                return PRESSURE_S
        return None

    def remember(self, ticket: Ticket[G, Any], error: NotServed, predicted: float | None, now: float) -> None:
        request = ticket.request
        self.statistics.refusals.append(
            Refusal(
                at=now,
                request=request.id,
                model=request.model,
                priority=request.priority,
                tenant=request.tenant,
                reason=error.reason,
                message=str(error),
                tokens=request.tokens,
                deadline=ticket.deadline,
                predicted=predicted,
                retry_after_s=error.retry_after_s,
                waiting=self.waiting,
                replicas=self.pool.alternatives(request.model),
            )
        )
