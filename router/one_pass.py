"""The queue of one-pass requests on the wall clock: placement's rule, called at arrivals and when batches are due.

Keeps the stage clocks true to what is observed. docs/router.md states what it does beside the rule.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

import numpy as np

from placement.clocks import NOBODY
from placement.dispatch import NO_REPLICA, REFUSED, SERVED
from placement.rules import Rule
from router import door
from router.correction import is_as_reckoned
from router.engine_door import look
from router.fair_share import DISPLACED_SHARE, MOST_DISPLACED
from router.hall import PATIENCE_S, Hall
from router.live_group import Batch, Member
from router.pool import Pool
from router.ticket import RANKS, Stage, Ticket

G = TypeVar("G")

LEAST_PAUSE_S = 0.001
PAUSE_PER_ROW_S = 20e-6
"""Between two schedules made anew because clocks moved: so long, and longer by this for each who waits. A schedule
takes a fraction of it, so that correcting never eats the processor."""

MOST_TRIED_AGAIN = 4
OVERDUE_CHECK_S = 0.005


class OnePassDesk(Generic[G]):
    """Calls the rule and turns what it says into starts."""

    def __init__(self, hall: Hall[G], sizes: int, overtake: float, travel_s: float, rule: Rule = "deadline") -> None:
        """`travel_s`: an answer is expected so long after the last stage, or earlier. Under `shortest-queue` nobody
        waits here: who is admitted is handed over at once, and waits there."""
        self._hall = hall
        self._binds = rule == "shortest-queue"
        self._travel_s = travel_s
        self._sizes = sizes
        self._overtake = overtake
        self.next_due = np.inf
        self.aside: dict[int, Ticket[G, Any]] = {}
        """Admitted, but displaced or without a place in time since clocks or replicas changed."""
        self._may_displace = MOST_DISPLACED
        self._is_dirty = False
        self._next_settle = -np.inf
        self._next_check = -np.inf

    @property
    def _pool(self) -> Pool[G]:
        return self._hall.pool

    @property
    def next_event(self) -> float:
        return min(self.next_due, self._next_settle) if self._is_dirty or self.aside else self.next_due

    def arrive(self, ticket: Ticket[G, Any], now: float) -> int:
        """The rule's verdict; an admitted ticket waits from now on, or runs."""
        pool, model = self._pool, ticket.model
        if not pool.replicas[model]:
            return NO_REPLICA
        if pool.is_mixed:
            look(*pool.all_arrays, now)
        self._may_displace = min(self._may_displace + DISPLACED_SHARE, MOST_DISPLACED)
        ticket.deadline = ticket.arrived + ticket.goals.first_s
        if ticket.request.inputs > 1:
            ticket.deadline -= self._least_extra_s(model, ticket.request.inputs)
        ticket.latest = ticket.deadline - pool.fastest[model]
        if self.aside:
            self._try_again(now, ticket.rank)
        status = REFUSED if self._comes_after(ticket) else self._offer(ticket, now)
        if status == REFUSED:
            status = self._displace(ticket, now)
        if status == SERVED and ticket.stage is Stage.NEW:
            self._hall.wait(ticket, now)
        return status

    def _comes_after(self, newcomer: Ticket[G, Any]) -> bool:
        """Whether there is work enough, and one who was admitted before the newcomer still needs a place."""
        shares = self._pool.shares[newcomer.model]
        return self._pool.queued > 0 and any(
            one.rank <= newcomer.rank and one.model in shares for one in self.aside.values()
        )

    def _offer(self, ticket: Ticket[G, Any], now: float) -> int:
        hall = self._hall
        overtake = 0.0 if hall.fair.waits_above(ticket.rank) else self._overtake
        deadline = ticket.deadline - self._pool.margin_s[ticket.model]
        if self._binds:
            status, began = door.bind(*self._pool.arrays, ticket.number, ticket.model, now, deadline)
            self._begin(0, began, now)
            return status
        status, dropped, began, self.next_due = door.arrive(
            *self._pool.arrays, ticket.number, ticket.model, now, deadline, self._sizes, overtake
        )
        if dropped != NOBODY:
            overtaken = hall.tickets[dropped]
            overtaken.is_scheduled = False
            hall.drop(overtaken, "expired", "overtaken by a cheaper request that there was no other room for", now)
        ticket.is_scheduled = status == SERVED
        if began:
            self._begin(0, began, now)
        return status

    def _displace(self, ticket: Ticket[G, Any], now: float) -> int:
        pool = self._pool
        if self._binds:
            return REFUSED
        shares = pool.shares[ticket.model]
        victims = self._hall.fair.victims(ticket, lambda one: one.is_scheduled and one.model in shares)
        victims = victims[: int(self._may_displace)]
        if not victims:
            return REFUSED
        column = pool.begun[0]
        for place, victim in enumerate(victims):
            column[place] = victim.number
        deadline = ticket.deadline - pool.margin_s[ticket.model]
        needed, began, self.next_due = door.displace(
            *pool.arrays, ticket.number, ticket.model, now, deadline, self._sizes, len(victims)
        )
        for victim in victims[:needed]:
            self._set_aside(victim, now)
        self._may_displace -= needed
        self._hall.statistics.displaced += needed
        ticket.is_scheduled = needed > 0
        if began:
            self._begin(len(victims), began, now)
        return SERVED if needed else REFUSED

    def advance(self, now: float) -> None:
        """Begin what is due; make the schedule anew where clocks have moved; try again for those aside."""
        if now >= self._next_check:
            self._check_overdue(now)
        if self._is_dirty and now >= self._next_settle:
            self.settle(now)
        if self.next_due <= now:
            began, self.next_due = door.advance(*self._pool.arrays, now)
            if began:
                self._begin(0, began, now)
        if self.aside and now >= self._next_settle:
            self._try_again(now, len(RANKS))

    def settle(self, now: float) -> None:
        """Place all who wait anew."""
        pool = self._pool
        self._is_dirty = False
        self._pause(now)
        if not pool.queued:
            self.next_due = np.inf
            return
        self._hall.statistics.settled += 1
        left, began, self.next_due = door.settle(*pool.arrays, now, self._sizes)
        for number in pool.begun[0][:left].tolist():
            self._set_aside(self._hall.tickets[number], now)
        if began:
            self._begin(left, began, now)

    def move_in(self, now: float) -> None:
        """Fill the queue of a new pool with all who wait, and settle it."""
        queue, hall = self._pool.floor.state.queue, self._hall
        waiting = [one for one in hall.tickets.values() if one.is_scheduled or one.is_aside]
        waiting.sort(key=lambda one: (one.deadline - self._pool.margin_s[one.model], one.number))
        self.aside.clear()
        for row, ticket in enumerate(waiting):
            ticket.is_scheduled, ticket.is_aside = True, False
            ticket.latest = ticket.deadline - self._pool.fastest[ticket.model]
            queue.request[row], queue.model[row] = ticket.number, ticket.model
            queue.deadline[row] = ticket.deadline - self._pool.margin_s[ticket.model]
        queue.length[0] = len(waiting)
        self.settle(now)

    def withdraw(self, ticket: Ticket[G, Any]) -> None:
        """One who waits goes."""
        if ticket.is_scheduled:
            ticket.is_scheduled = False
            door.take_out(*self._pool.arrays, ticket.number)
            self.next_due = float(self._pool.floor.next_due[0])
        self.aside.pop(ticket.number, None)
        ticket.is_aside = False

    def ended(self, ticket: Ticket[G, Any], now: float, was_answered: bool) -> None:
        """One who ran is gone: the first answer of a batch tells when it was done."""
        batch, member = ticket.batch, ticket.member
        assert batch is not None
        assert member is not None
        if was_answered and not batch.is_observed:
            self._observe(member, batch, now)
        batch.open -= 1
        if not batch.open:
            member.batches.remove(batch)

    def drop_late(self, ticket: Ticket[G, Any], now: float) -> None:
        """One who was watched: in the schedule again it keeps its deadline; aside, its time may have passed."""
        if not ticket.is_aside:
            return
        has_replica = self._pool.replicas[ticket.model] > 0
        if has_replica and now < ticket.latest:
            self._hall.watch(ticket, ticket.latest)
            return
        self.withdraw(ticket)
        if has_replica:
            self._hall.drop(ticket, "expired", "overtaken, and too late by now", now)
        else:
            self._hall.drop(ticket, "no-replica", "no group is left that serves its model", now)

    def retry_after_s(self, model: int, slack_s: float, now: float) -> float | None:
        """In how many seconds one with so much time would be admitted if nobody else came: all behind the last who
        waits, whose finish does not move with the arrival. None: never."""
        finish = self.earliest_finish(model, now)
        slack_s -= self._pool.margin_s[model]
        if self._pool.fastest[model] > slack_s or finish == np.inf:
            return None
        return max(finish - slack_s - now, 0.0)

    def expected(self, ticket: Ticket[G, Any], now: float) -> float:
        """When it would be answered behind all who wait."""
        return self.earliest_finish(ticket.model, now)

    def earliest_finish(self, model: int, now: float) -> float:
        return door.earliest_finish(*self._pool.arrays, model, now)

    def _begin(self, first: int, count: int, now: float) -> None:
        """Start those who stand in Begun from `first` on; members of one batch in the same turn of the loop."""
        hall, pool = self._hall, self._pool
        requests, replicas, batches, _, starts, ends = pool.begun
        begun: dict[int, Batch] = {}
        for row in range(first, first + count):
            ticket = hall.tickets[requests[row]]
            member = pool.replica_member[replicas[row]]
            batch = begun.get(batches[row])
            if batch is None:
                batch = begun[batches[row]] = Batch(ticket.model, starts[row], ends[row])
                member.batches.append(batch)
            batch.open += 1
            ticket.batch = batch
            ticket.is_scheduled = False
            if ticket.request.inputs > 1:
                extra = self._extra_s(member.index, ticket.model, ticket.request.inputs)
                batch.end += extra
                self._move(member, extra, now)
            hall.start(ticket, member, now)

    def _observe(self, member: Member[G], batch: Batch, now: float) -> None:
        """Correct the group's clocks, and what its model takes there, by when a batch was done."""
        batch.is_observed = True
        if member.index < 0:
            return
        planned_s = batch.end - batch.guessed_s - batch.start
        observed_s = planned_s + self._surprise_s(now - batch.start - planned_s)
        self._pool.observe_batch(member, batch.model, observed_s, planned_s, now)
        others = [other for other in member.batches if not other.is_observed]
        for other in others:
            other.guessed_s = 0.0
        late = self._surprise_s(now - batch.end)
        if is_as_reckoned(late, batch.end - batch.start):
            return
        for other in others:
            other.end = max(other.end + late, now)
        if others or late < 0:
            self._move(member, late, now)

    def _surprise_s(self, late_s: float) -> float:
        """Of an answer that came so long after its last stage was to be done, what its way does not explain."""
        return max(late_s - self._travel_s, 0.0) if late_s > 0 else late_s

    def _check_overdue(self, now: float) -> None:
        """A group whose batch should have been done is taken to need as long again as it is late."""
        self._next_check = now + OVERDUE_CHECK_S
        now -= self._travel_s
        for member in self._pool.members:
            head = next((batch for batch in member.batches if not batch.is_observed), None)
            if head is not None and now > head.end and not is_as_reckoned(now - head.end, head.end - head.start):
                guess = 2 * (now - head.end)
                for batch in member.batches:
                    if not batch.is_observed:
                        batch.end += guess
                        batch.guessed_s += guess
                self._move(member, guess, now)

    def _move(self, member: Member[G], seconds: float, now: float) -> None:
        if member.index >= 0:
            self._pool.move_clocks(member.index, seconds, now)
            self._is_dirty = self._is_dirty or self._pool.queued > 0

    def _set_aside(self, ticket: Ticket[G, Any], now: float) -> None:
        ticket.is_scheduled = False
        ticket.is_aside = True
        self.aside[ticket.number] = ticket
        patience_s = math.inf if self._pool.replicas[ticket.model] else PATIENCE_S
        self._hall.watch(ticket, min(ticket.latest, now + patience_s))

    def _try_again(self, now: float, rank: int) -> None:
        """Those of a class, or of a higher one, who were admitted: before anybody who comes."""
        self._pause(now)
        waiting = (one for one in self.aside.values() if one.rank <= rank)
        first = sorted(waiting, key=lambda one: (one.rank, one.deadline))[:MOST_TRIED_AGAIN]
        for ticket in first:
            if ticket.stage is not Stage.WAITING or not self._pool.replicas[ticket.model]:
                continue
            status, _, began, self.next_due = door.arrive(
                *self._pool.arrays, ticket.number, ticket.model, now, ticket.deadline, self._sizes, 0.0
            )
            if status == SERVED:
                del self.aside[ticket.number]
                ticket.is_aside, ticket.is_scheduled = False, True
            if began:
                self._begin(0, began, now)

    def _pause(self, now: float) -> None:
        self._next_settle = now + max(LEAST_PAUSE_S, PAUSE_PER_ROW_S * self._pool.queued)

    def _extra_s(self, group: int, model: int, inputs: int) -> float:
        """What a request with several inputs takes on a group beyond one with one."""
        tables = self._pool.floor.tables
        stages = int(tables.stages[group])
        total = tables.latency[group, model, : self._sizes, :stages].sum(axis=1)
        sizes = [(int(size), float(s)) for size, s in zip(tables.batch_size, total, strict=False) if np.isfinite(s)]
        if not sizes:
            return 0.0
        for size, seconds in sizes:
            if size >= inputs:
                return seconds - sizes[0][1]
        largest, seconds = sizes[-1]
        return -(-inputs // largest) * seconds - sizes[0][1]

    def _least_extra_s(self, model: int, inputs: int) -> float:
        tables = self._pool.floor.tables
        groups = tables.replica_group[tables.first_replica[model] : tables.first_replica[model + 1]].tolist()
        return min(self._extra_s(group, model, inputs) for group in groups)
