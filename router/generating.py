"""The lines of generating models on the wall clock: placement's rules over a mirror of the engines.

The mirror knows what was sent, first tokens, tokens and ends; a group's steps it cannot see (docs/router.md).
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

from placement.clocks import NOBODY
from placement.dispatch import NO_REPLICA, QUEUE_FULL, REFUSED, SERVED
from router import engine_door
from router.fair_share import DISPLACED_SHARE, MOST_DISPLACED
from router.hall import PATIENCE_S, Hall
from router.live_group import Member
from router.model_facts import Goals
from router.pool import Pool
from router.prefixes import PrefixMemory, block_names
from router.ticket import Stage, Ticket
from router.world_memory import OUT

G = TypeVar("G")


UNKNOWN_RETRY_S = 1.0
"""Where nothing tells when there will be room, but there will be."""


class GeneratingDesk(Generic[G]):
    """Calls the rules and turns what they say into starts."""

    def __init__(self, hall: Hall[G], slots: int, capacity: int, prefix_blocks: int) -> None:
        self._hall = hall
        self._capacity = capacity
        self._prefix_blocks = prefix_blocks
        self._free = list(range(slots - 1, -1, -1))
        self._by_slot: dict[int, Ticket[G, Any]] = {}
        self._may_displace = MOST_DISPLACED
        self.last_expected = 0.0
        """When the first token of the last one who arrived was expected."""

    @property
    def _pool(self) -> Pool[G]:
        return self._hall.pool

    def arrive(self, ticket: Ticket[G, Any], now: float) -> int:
        """The rule's verdict; an admitted ticket stands in its model's line, or runs."""
        pool, model = self._pool, ticket.model
        if not pool.engines_of_model[model]:
            return NO_REPLICA
        if not self._free:
            return QUEUE_FULL
        if ticket.request.tpot_s is not None and not self._can_when_idle(model, ticket.request.tokens, ticket.goals):
            self.last_expected = math.inf
            return REFUSED
        slot = self._free.pop()
        pool.prompt[slot] = max(ticket.request.tokens, 1)
        self._may_displace = min(self._may_displace + DISPLACED_SHARE, MOST_DISPLACED)
        status = self._admit(ticket, slot, now)
        if status == REFUSED:
            status = self._displace(ticket, slot, now)
        if status != SERVED:
            self._free.append(slot)
            return status
        ticket.slot = slot
        self._by_slot[slot] = ticket
        ticket.latest = pool.latest[slot]
        if ticket.request.prompt and not ticket.names:
            ticket.names = block_names(ticket.request.prompt)
        engine_door.join(*pool.all_arrays, slot, model)
        self.hand(model, now)
        if ticket.stage is Stage.NEW:
            self._hall.wait(ticket, now)
            self._hall.watch(ticket, ticket.latest)
        return SERVED

    def _admit(self, ticket: Ticket[G, Any], slot: int, now: float) -> int:
        wake_s = self._hall.wake_s(ticket.request.model)
        passed = now - ticket.arrived + wake_s
        first_s, last_s, token_s = ticket.goals
        goals = (first_s - passed, last_s - passed, token_s)
        status, expected = engine_door.admit(*self._pool.all_arrays, slot, ticket.model, now, goals, self._capacity)
        self.last_expected = expected + wake_s
        self._drop_expired(now)
        return status

    def _displace(self, ticket: Ticket[G, Any], slot: int, now: float) -> int:
        """Admit it in place of as few as possible of those who wait in lower classes, or for a tenant that holds more
        than its share."""
        arrays, expected = self._pool.all_arrays, self.last_expected
        alike = self._hall.fair.victims(ticket, lambda one: one.model == ticket.model)
        victims: list[Ticket[G, Any]] = []
        for victim in alike[: int(self._may_displace)]:
            engine_door.leave(*arrays, victim.slot, victim.model)
            victims.append(victim)
            self._uncount(ticket.model, ticket.request.tokens)
            if self._admit(ticket, slot, now) == SERVED:
                break
        else:
            for victim in victims:
                engine_door.join(*arrays, victim.slot, victim.model)
            self.last_expected = expected
            return REFUSED
        self._may_displace -= len(victims)
        self._hall.statistics.displaced += len(victims)
        for victim in victims:
            self._release(victim)
            whose = "of a higher class" if victim.rank > ticket.rank else "of a tenant that holds less"
            self._hall.drop(victim, "expired", f"a request {whose} took its place", now)
        return SERVED

    def hand(self, model: int, now: float) -> None:
        """Give waiting requests to lanes that may pull them."""
        pool, hall = self._pool, self._hall
        while pool.waiting[model]:
            known = self._look_up_prefix(model)
            slot, lane, expected_at = engine_door.hand(*pool.all_arrays, model, now, known)
            self._drop_expired(now)
            if slot == NOBODY:
                return
            ticket = self._by_slot[slot]
            ticket.lane, ticket.engine = lane, pool.lane_engine[lane]
            member = pool.engine_member[ticket.engine]
            is_cached = slot == known and pool.mirror.prefix[ticket.engine] > 0
            if ticket.names:
                self._prefix_memory(member, model).remember(ticket.names)
            hall.start(ticket, member, now)
            ticket.handed_at, ticket.expected_at = now, expected_at
            is_alone = member.running == 1 and not is_cached and now >= member.back_at
            is_alone = is_alone and not hall.wake_s(ticket.request.model)
            ticket.alone = member.started if is_alone else -1
            self._tighten(ticket)

    def withdraw(self, ticket: Ticket[G, Any]) -> None:
        """One who waits goes."""
        pool = self._pool
        engine_door.leave(*pool.all_arrays, ticket.slot, ticket.model)
        self._release(ticket)

    def first(self, ticket: Ticket[G, Any], now: float) -> None:
        if ticket.lane >= 0:
            member = ticket.member
            assert member is not None
            if ticket.alone == member.started:
                expected_s = ticket.expected_at - ticket.handed_at
                self._pool.observe(member, ticket.model, now - ticket.handed_at, expected_s, now)
            self._decode(ticket, now, not ticket.is_retried)
            self.hand(ticket.model, now)

    def token(self, ticket: Ticket[G, Any], now: float) -> None:
        if ticket.lane >= 0:
            pool = self._pool
            pool.cached[ticket.lane] += 1
            pool.used[ticket.engine] += 1
            pool.event[ticket.lane] = now

    def ended(self, ticket: Ticket[G, Any], now: float, was_answered: bool) -> None:
        """One who ran is gone."""
        pool, member = self._pool, ticket.member
        assert member is not None
        if ticket.lane >= 0:
            answers, cached = ticket.request.answers, ticket.items - 1
            engine_door.end(*pool.all_arrays, ticket.slot, ticket.lane, answers, cached, now)
        if was_answered and ticket.items:
            learned = pool.mirror.world.learned
            learned.ended[ticket.model] += 1
            learned.ended_tokens[ticket.model] += ticket.items / ticket.request.answers
        self._release(ticket)
        self._loosen(ticket)
        if member.index >= 0:
            waiting = [model for model in pool.generates_on[member.index] if pool.waiting[model]]
            for model in sorted(waiting, key=lambda model: pool.deadline[pool.head[model]]):
                self.hand(model, now)

    def move_in(self, now: float) -> None:
        """Fill a new pool with those who run, and the lines with those who wait, in the order of their coming."""
        pool = self._pool
        for ticket in sorted(self._by_slot.values(), key=lambda one: one.number):
            if ticket.stage is Stage.RUNNING:
                assert ticket.member is not None
                ticket.engine = pool.engine_at.get((ticket.member.index, ticket.model), -1)
                ticket.lane = -1
                if ticket.engine >= 0:
                    ticket.lane = engine_door.place(*pool.all_arrays, ticket.slot, ticket.engine, now)
                    self._tighten(ticket)
                if ticket.lane >= 0 and ticket.items:
                    self._decode(ticket, now, learns=False)
                    pool.cached[ticket.lane] += ticket.items - 1
                    pool.used[ticket.engine] += ticket.items - 1
            else:
                engine_door.join(*pool.all_arrays, ticket.slot, ticket.model)
                if not pool.engines_of_model[ticket.model]:
                    self._hall.watch(ticket, now + PATIENCE_S)
        for model in range(pool.models):
            if pool.waiting[model] and pool.engines_of_model[model]:
                self.hand(model, now)

    def expected(self, ticket: Ticket[G, Any], now: float) -> float:
        """When its first token would come, behind all who are due no later."""
        return self._estimate(ticket.model, ticket.request.tokens, ticket.goals, now)

    def would_wait_s(self, model: int, tokens: int, goals: Goals, now: float) -> float | None:
        """In how many seconds a request with such a prompt may be admitted if nobody else came; None: never."""
        expected = self._estimate(model, tokens, goals, now)
        return self.retry_after_s(model, tokens, goals, expected - now - goals.first_s)

    def _estimate(self, model: int, tokens: int, goals: Goals, now: float) -> float:
        if not self._free:
            return math.inf
        pool, slot = self._pool, self._free[-1]
        pool.prompt[slot] = max(tokens, 1)
        _, expected = engine_door.admit(*pool.all_arrays, slot, model, now, (*goals,), self._capacity)
        self._drop_expired(now)
        self._uncount(model, tokens)
        return expected

    def _uncount(self, model: int, tokens: int) -> None:
        """It was weighed, but has not come, or is weighed again."""
        learned = self._pool.mirror.world.learned
        learned.arrived[model] -= 1
        learned.arrived_tokens[model] -= max(tokens, 1)

    def retry_after_s(self, model: int, tokens: int, goals: Goals, late_s: float) -> float | None:
        """The same for one whose first token would now come so late."""
        if not self._can_when_idle(model, tokens, goals):
            return None
        return late_s if late_s < math.inf else UNKNOWN_RETRY_S

    def _can_when_idle(self, model: int, tokens: int, goals: Goals) -> bool:
        """Nobody's pace is tried that no engine could keep: while it waited or ran, others would have to keep it."""
        return engine_door.can_when_idle(*self._pool.all_arrays, model, max(tokens, 1), (*goals,))

    def drop_late(self, ticket: Ticket[G, Any], now: float) -> None:
        """Its time is over: the rule drops it; without an engine nobody else would."""
        if self._pool.engines_of_model[ticket.model]:
            self.hand(ticket.model, now)
        else:
            self.withdraw(ticket)
            self._hall.drop(ticket, "no-replica", f"no group serves {ticket.request.model!r} at the moment", now)

    def _decode(self, ticket: Ticket[G, Any], now: float, learns: bool) -> None:
        pool, answers = self._pool, ticket.request.answers
        engine_door.first_token(*pool.all_arrays, ticket.slot, ticket.lane, answers, now, learns)

    def _drop_expired(self, now: float) -> None:
        pool = self._pool
        for place in range(int(pool.world.ints[OUT])):
            ticket = self._by_slot[pool.out[place]]
            self._release(ticket)
            self._hall.drop(ticket, "expired", "its first token could no longer come in time", now)

    def _release(self, ticket: Ticket[G, Any]) -> None:
        del self._by_slot[ticket.slot]
        self._free.append(ticket.slot)
        ticket.slot = ticket.lane = ticket.engine = -1

    def _look_up_prefix(self, model: int) -> int:
        """Note for the first in line what each engine has of its prompt; returns it, or NOBODY."""
        pool = self._pool
        head: int = pool.head[model]
        names = self._by_slot[head].names if head != NOBODY else ()
        if not names:
            return NOBODY
        for engine in pool.engines_of_model[model]:
            memory = pool.engine_member[engine].prefixes.get(model)
            pool.mirror.prefix[engine] = memory.known_tokens(names) if memory else 0
        return head

    def _prefix_memory(self, member: Member[G], model: int) -> PrefixMemory:
        memory = member.prefixes.get(model)
        if memory is None:
            memory = member.prefixes[model] = PrefixMemory(self._prefix_blocks)
        return memory

    def _tighten(self, ticket: Ticket[G, Any]) -> None:
        """While it runs, its model's steps keep its pace."""
        tpot = self._pool.mirror.world.engines.tpot
        if ticket.goals.token_s < tpot[ticket.model]:
            tpot[ticket.model] = ticket.goals.token_s

    def _loosen(self, ticket: Ticket[G, Any]) -> None:
        own = self._pool.own_tpot[ticket.model]
        if ticket.goals.token_s < own:
            running = (one for one in self._by_slot.values() if one.model == ticket.model)
            tightest = min((one.goals.token_s for one in running if one.stage is Stage.RUNNING), default=own)
            self._pool.mirror.world.engines.tpot[ticket.model] = min(tightest, own)
