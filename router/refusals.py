"""How the router says no at arrival: the reason, the words, and when to come back."""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

from router.generating import UNKNOWN_RETRY_S, GeneratingDesk
from router.hall import HAIR_S, Hall
from router.one_pass import OnePassDesk
from router.request import NotServed, Reason
from router.ticket import Stage, Ticket

G = TypeVar("G")

MOST_RETRY_S = 600.0
"""Nobody is asked to stay away longer: what is known now says little about then."""


class Refusals(Generic[G]):
    """Each method counts and remembers a refusal, and returns what is to be raised."""

    def __init__(self, hall: Hall[G], one_pass: OnePassDesk[G], generating: GeneratingDesk[G]) -> None:
        self._hall = hall
        self._one_pass = one_pass
        self._generating = generating

    def no_replica(self, ticket: Ticket[G, Any], now: float) -> NotServed:
        message = f"no group serves {ticket.request.model!r} at the moment"
        return self._refused(ticket, "no-replica", message, self._hall.reload_s(ticket.request.model, now), now)

    def queue_full(self, ticket: Ticket[G, Any], now: float) -> NotServed:
        hall, due = self._hall, self._one_pass.next_due
        message = f"{hall.waiting} requests with {hall.waiting_tokens} tokens wait already"
        retry_s = due - now if due < math.inf else UNKNOWN_RETRY_S
        return self._refused(ticket, "queue-full", message, retry_s, now)

    def over_share(self, ticket: Ticket[G, Any], now: float) -> NotServed:
        tenant = ticket.request.tenant
        whose = f"tenant {tenant!r} holds more than its" if tenant else "requests without a tenant hold more than their"
        message = f"{whose} share of what waits"
        return self._refused(ticket, "refused", message, self._hall.headroom.pressed_until - now, now)

    def held_back(self, ticket: Ticket[G, Any], spare_s: float, predicted: float, now: float) -> NotServed:
        message = (
            f"others wait for what {ticket.request.model!r} needs; it must find room with {spare_s:.3f} s to spare"
        )
        retry_s = predicted - (ticket.deadline - spare_s)
        if predicted == math.inf:
            retry_s = UNKNOWN_RETRY_S
        return self._refused(ticket, "refused", message, retry_s, now, predicted if predicted < math.inf else None)

    def late(self, ticket: Ticket[G, Any], now: float) -> NotServed:
        model, overhead_s = ticket.request.model, self._hall.overhead_s
        goal_s = ticket.goals.first_s + overhead_s
        if goal_s < overhead_s:
            least = f"{1e3 * overhead_s:g} ms that any answer takes, whatever it computes"
            message = f"{model!r}: a goal of {1e3 * goal_s:g} ms is below the {least}"
            return self._refused(ticket, "refused", message, None, now)
        if ticket.generates:
            predicted = self._generating.last_expected
            late_s = predicted - ticket.deadline
            retry_s = self._generating.retry_after_s(ticket.model, ticket.request.tokens, ticket.goals, late_s)
        else:
            predicted = self._one_pass.earliest_finish(ticket.model, now)
            retry_s = self._one_pass.retry_after_s(ticket.model, ticket.deadline - now, now)
        message = f"{model!r} cannot answer within {goal_s:.3f} s"
        if ticket.generates and ticket.request.tpot_s is not None:
            message += f" and {1e3 * ticket.goals.token_s:g} ms for each further token"
        message += ": "
        if retry_s is None and self._hall.pool.forget(ticket.model, now):
            message += "its groups have been too slow of late"
            retry_s = UNKNOWN_RETRY_S
        elif retry_s is None:
            message += "no group could, even with nothing else to do"
        elif predicted < math.inf:
            message += f"the answer would be {max(predicted - ticket.deadline, 0.0):.3f} s late"
        else:
            message += "its tokens, or those of others, would come too slowly"
        return self._refused(ticket, "refused", message, retry_s, now, predicted if predicted < math.inf else None)

    def _refused(
        self,
        ticket: Ticket[G, Any],
        reason: Reason,
        message: str,
        retry_s: float | None,
        now: float,
        predicted: float | None = None,
    ) -> NotServed:
        error = NotServed(reason, message, bounded(retry_s))
        ticket.stage = Stage.ENDED
        ticket.statistics.end_without(reason, now)
        self._hall.remember(ticket, error, predicted, now)
        return error


def bounded(retry_s: float | None) -> float | None:
    """Within what a client can be told; None stays: it would never help."""
    return None if retry_s is None else min(max(retry_s, 0.0) + HAIR_S, MOST_RETRY_S)
