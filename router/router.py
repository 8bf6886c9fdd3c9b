"""Takes requests, and gives each to the group that will answer it in time, or says no at once.

The decisions are placement's compiled rules, on the wall clock. Knows nothing of HTTP, nor what a group is: `run`
does. Everything happens on one event loop.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from placement.cluster import Cluster
from placement.dispatch import NO_REPLICA, QUEUE_FULL, REFUSED, SERVED
from placement.errors import InputError
from placement.problem import Problem
from placement.tables import Catalogue
from router.alarm import Alarm
from router.generating import GeneratingDesk
from router.hall import Hall
from router.live_group import LiveGroup, Member
from router.model_facts import ModelFacts, model_facts
from router.one_pass import OnePassDesk
from router.pool import Pool
from router.progress import Lost, Progress
from router.refusals import Refusals, bounded
from router.request import NotServed, Request
from router.settings import RouterSettings
from router.statistics import Statistics
from router.ticket import Stage, Ticket

G = TypeVar("G")
T = TypeVar("T")

RETRIED = 64
"""How many more than the bound may wait, of those whose group was lost."""


class Router(Generic[G]):
    """`lost`: the exceptions of `run` that mean that the group is gone; a function where types do not tell."""

    def __init__(
        self,
        problem: Problem,
        lost: Lost = (),
        settings: RouterSettings | None = None,
        now: Callable[[], float] = time.monotonic,
        kinds: Collection[str] | None = None,
    ) -> None:
        """`kinds`: of the devices of a cluster that changes (`move`)."""
        self.settings = bounds = settings or RouterSettings()
        self._now = now
        self._catalogue = Catalogue(problem, kinds)
        self._facts = model_facts(self._catalogue)
        self._members: dict[str, Member[G]] = {}
        self._next_number = 0
        self._room_s: list[float] = []
        """Of each model, how long its requests can wait."""
        sizes = max(int(np.searchsorted(self._catalogue.batch_size, bounds.max_batch, side="right")), 1)
        self._hall: Hall[G] = Hall(self._make_pool((), None), problem.overhead, bounds.even_models)
        self._one_pass: OnePassDesk[G] = OnePassDesk(
            self._hall, sizes, bounds.overtake_share, problem.overhead, bounds.dispatch
        )
        self._generating: GeneratingDesk[G] = GeneratingDesk(
            self._hall, bounds.running_requests, bounds.queue_requests, bounds.prefix_blocks
        )
        self._refusals: Refusals[G] = Refusals(self._hall, self._one_pass, self._generating)
        self._alarm = Alarm(now, self._run_due)
        most_waiting = bounds.queue_requests + RETRIED
        self._progress: Progress[G] = Progress(
            self._hall, self._generating, lost, most_waiting, now, self._changed, self._regroup
        )

    # What requests do

    def submit(self, request: Request, run: Callable[[G], AsyncIterator[T]]) -> Ticket[G, T]:
        """Admit a request, or raise NotServed, at once. The iterator waits for the start, calls `run` with the group's
        handle and passes on what it yields; of a one-pass request the first item is the answer. Leaving it early
        (`aclose`, or its task is cancelled) cancels the request, wherever it is."""
        now, hall = self._now(), self._hall
        facts = self._facts.get(request.model)
        if facts is None:
            raise NotServed("no-replica", f"no model is named {request.model!r}")
        counts = hall.statistics.of(request.model, request.priority)
        counts.arrivals += 1
        hall.statistics.arrived.append((now, request.model, request.tokens, request.max_tokens))
        desk = self._generating if facts.generates else self._one_pass
        ticket = Ticket(self._progress, desk, run, request, self._next_number, facts, counts, now)
        self._next_number += 1
        victims = self._make_room(ticket)
        if victims is None:
            raise self._refusals.queue_full(ticket, now)
        if now < hall.headroom.pressed_until:
            self._hold_back(ticket, now)
        hall.tickets[ticket.number] = ticket
        displaced = hall.statistics.displaced
        status = desk.arrive(ticket, now)
        if status in (SERVED, REFUSED):
            displaced = hall.statistics.displaced - displaced
            hall.headroom.count(ticket.model, ticket.rank, status == SERVED, displaced > 0, now)
        if status != SERVED:
            del hall.tickets[ticket.number]
            self._arm()
            raise self._refusal(ticket, status, now)
        for victim in victims:
            if victim.stage is Stage.WAITING:
                victim.desk.withdraw(victim)
                hall.drop(victim, "expired", "a request of a higher class took its place in the full queue", now)
        self._arm()
        return ticket

    def _make_room(self, ticket: Ticket[G, Any]) -> list[Ticket[G, Any]] | None:
        """Who has to go so that the queue's bounds hold with one more; None if they cannot."""
        hall, bounds = self._hall, self.settings
        over = hall.waiting + 1 - bounds.queue_requests
        tokens_over = hall.waiting_tokens + ticket.request.tokens - bounds.queue_tokens
        victims: list[Ticket[G, Any]] = []
        if over <= 0 and tokens_over <= 0:
            return victims
        for victim in hall.fair.below(ticket.rank):
            victims.append(victim)
            tokens_over -= victim.request.tokens
            if len(victims) >= over and tokens_over <= 0:
                return victims
        return None

    def _hold_back(self, ticket: Ticket[G, Any], now: float) -> None:
        """Refuse, while there is not room for all, who would take that of others."""
        hall = self._hall
        if hall.fair.is_over_share(ticket.request.tenant, ticket.work_s, now):
            raise self._refusals.over_share(ticket, now)
        shares = hall.pool.shares[ticket.model]
        spare_s = hall.headroom.spare_s(ticket.model, ticket.rank, shares, self._room_s)
        if spare_s > 0 and hall.pool.alternatives(ticket.request.model):
            expected = ticket.desk.expected(ticket, now)
            if expected > ticket.deadline - spare_s:
                hall.headroom.count(ticket.model, ticket.rank, False, False, now)
                raise self._refusals.held_back(ticket, spare_s, expected, now)

    def _refusal(self, ticket: Ticket[G, Any], status: int, now: float) -> NotServed:
        if status == NO_REPLICA:
            return self._refusals.no_replica(ticket, now)
        if status == QUEUE_FULL:
            return self._refusals.queue_full(ticket, now)
        return self._refusals.late(ticket, now)

    # What the controller does

    def apply(self, groups: Iterable[LiveGroup[G]], back_by: Mapping[str, float] | None = None) -> None:
        """These are the groups from now on, in the plan's order. One with the name and the handle of before goes on;
        who waits is scheduled anew, who runs goes on where it is. `back_by`: when models are expected to be served
        (again), of those that are not, where that is known."""
        self._hall.back_by = back_by or {}
        groups = list(groups)
        members: dict[str, Member[G]] = {}
        for group in groups:
            if group.name in members:
                raise InputError(f"router: two groups are named {group.name!r}; names must differ")
            if self._catalogue.find_class(group.spec) is None:
                raise InputError(f"router: group {group.name!r}: no model has a profile for {group.spec.shape}")
            known = self._members.get(group.name)
            if known is None or known.handle is not group.handle or known.lost:
                known = Member(group.name, group.spec, group.handle)
            members[group.name] = known
        is_new = list(members.values()) != list(self._members.values())
        for group, member in zip(groups, members.values(), strict=True):
            is_new |= (member.spec, member.ready, member.draining) != (group.spec, set(group.ready), group.draining)
            member.spec, member.ready, member.draining = group.spec, set(group.ready), group.draining
            if group.back_at > member.back_at:
                member.free = np.full(self._catalogue.stages, group.back_at)
            member.back_at = group.back_at
        self._members = members
        if is_new:
            self._regroup()

    def reckon_with(self, wake_s: Callable[[str], float]) -> None:
        """`wake_s`: how long a generating model that is asleep wherever it is will take to be awake."""
        self._hall.wake_s = wake_s

    def move(self, cluster: Cluster) -> None:
        """The devices are these from now on; groups on others must have gone before."""
        self._catalogue.move(cluster)

    def close(self) -> None:
        """Refuse all who wait; stop the timer."""
        for ticket in [one for one in self._hall.tickets.values() if one.stage is Stage.WAITING]:
            ticket.desk.withdraw(ticket)
            self._hall.drop(ticket, "failed", "the server is stopping", self._now())
        self._alarm.stop()

    # What others may ask

    @property
    def statistics(self) -> Statistics:
        return self._hall.statistics

    @property
    def waiting(self) -> int:
        return self._hall.waiting

    @property
    def running(self) -> int:
        return len(self._hall.tickets) - self._hall.waiting

    def open_on(self, handle: G, model: str | None = None) -> int:
        """How many requests (of the model) run on a group."""
        running = (one for one in self._hall.tickets.values() if one.member is not None and one.member.handle is handle)
        return sum(model is None or one.request.model == model for one in running)

    def ready_groups(self, model: str) -> list[str]:
        """Names of the groups that take requests for the model."""
        self._known(model)
        return [name for name, _ in self._hall.pool.alternatives(model)]

    def usual_output(self, model: str) -> float:
        """Tokens of the model's answers so far, on average; 0 while none has ended."""
        learned, index = self._hall.pool.mirror.world.learned, self._known(model).index
        return float(learned.ended_tokens[index] / max(learned.ended[index], 1))

    def factors(self) -> dict[tuple[str, str], float]:
        """(group, model): how much longer than profiled it takes, where that is known."""
        names = list(self._facts)
        return {(one.name, names[m]): factor for one in self._members.values() for m, factor in one.factor.items()}

    def retry_after_s(self, model: str, slo_s: float | None = None, tokens: int = 1) -> float | None:
        """In how many seconds a request would be admitted if nobody else came; None: never."""
        facts, now = self._known(model), self._now()
        goals = facts.goals_of(Request(id="", model=model, tokens=tokens, slo_s=slo_s))
        if not self.ready_groups(model):
            return bounded(self._hall.reload_s(model, now))
        if facts.generates:
            return bounded(self._generating.would_wait_s(facts.index, tokens, goals, now))
        return bounded(self._one_pass.retry_after_s(facts.index, goals.first_s, now))

    # Time

    def _arm(self) -> None:
        self._alarm.set(min(self._one_pass.next_event, self._hall.next_too_late))

    def _changed(self, now: float) -> None:
        """Something ended: what that lets begin begins."""
        if self._one_pass.next_event <= now:
            self._run_due(now)
        else:
            self._arm()

    def _run_due(self, now: float) -> None:
        self._one_pass.advance(now)
        for ticket in self._hall.too_late(now):
            (self._generating if ticket.generates else self._one_pass).drop_late(ticket, now)
        self._arm()

    # Groups

    def _regroup(self) -> None:
        """Take up what has changed in the groups."""
        now = self._now()
        pool = self._hall.pool = self._make_pool(self._members.values(), self._hall.pool)
        facts = zip(self._facts.values(), pool.fastest, strict=True)
        self._room_s = [one.room_s(fastest_s) for one, fastest_s in facts]
        self._one_pass.move_in(now)
        self._generating.move_in(now)
        if self._hall.tickets:
            self._arm()

    def _make_pool(self, members: Iterable[Member[G]], before: Pool[G] | None) -> Pool[G]:
        bounds = self.settings
        capacity = bounds.queue_requests + RETRIED
        return Pool(self._catalogue, list(members), capacity, bounds.running_requests, bounds.step_tokens, before)

    def _known(self, model: str) -> ModelFacts:
        if model not in self._facts:
            raise InputError(f"router: no model is named {model!r}")
        return self._facts[model]
