"""Who holds how much of the queued work, and who goes first when there is not room for all. docs/router.md has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from router.ticket import Ticket

    MayGo = Callable[[Ticket[Any, Any]], bool]

RECENT_S = 1.0
"""A tenant counts so long after its last request."""

MOST_VICTIMS = 8
"""How many may be set aside for one newcomer."""

DISPLACED_SHARE = 0.005
MOST_DISPLACED = 8.0
"""Of those who come, so many may displace others, and so many at once: who was admitted shall rarely be dropped."""

MOST_LOOKED_AT = 64
"""How many are looked at to find them."""


@dataclass(slots=True)
class Tenant:
    work_s: float = 0.0
    waiting: dict[int, Ticket[Any, Any]] = field(default_factory=dict)
    seen: float = 0.0


class FairShare:
    """The queued work by tenant, and those who wait by class, in the order of their coming."""

    def __init__(self, classes: int) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.by_rank: list[dict[int, Ticket[Any, Any]]] = [{} for _ in range(classes)]
        self.work_s = 0.0
        self._swept = float("-inf")

    def join(self, ticket: Ticket[Any, Any], now: float) -> None:
        tenant = self._tenant(ticket.request.tenant, now)
        tenant.work_s += ticket.work_s
        tenant.waiting[ticket.number] = ticket
        self.by_rank[ticket.rank][ticket.number] = ticket
        self.work_s += ticket.work_s

    def leave(self, ticket: Ticket[Any, Any]) -> None:
        tenant = self.tenants[ticket.request.tenant]
        del tenant.waiting[ticket.number]
        del self.by_rank[ticket.rank][ticket.number]
        tenant.work_s = tenant.work_s - ticket.work_s if tenant.waiting else 0.0
        self.work_s = self.work_s - ticket.work_s if any(self.by_rank) else 0.0

    def is_over_share(self, name: str, work_s: float, now: float) -> bool:
        """Whether the tenant, with so much more, would hold more of the queued work than the tenants of the last
        moments would each hold if it were shared equally."""
        tenant = self._tenant(name, now)
        self._sweep(now)
        return bool(tenant.waiting) and self._exceeds(tenant.work_s + work_s, work_s)

    def waits_above(self, rank: int) -> bool:
        return any(self.by_rank[above] for above in range(rank))

    def below(self, rank: int) -> Iterator[Ticket[Any, Any]]:
        """Those who wait in lower classes, the lowest first, and of it who came last."""
        for lower in range(len(self.by_rank) - 1, rank, -1):
            yield from reversed(self.by_rank[lower].values())

    def victims(self, newcomer: Ticket[Any, Any], may_go: MayGo) -> list[Ticket[Any, Any]]:
        """Whom to set aside for a newcomer that finds no place, in order: of lower classes, the lowest first; then of
        its own class those of the tenant that holds most, if that is more than its share and the newcomer's tenant
        stays within its own. Who came last goes first. Only those who `may_go`: whose going would make room."""
        found: list[Ticket[Any, Any]] = []
        for rank in range(len(self.by_rank) - 1, newcomer.rank, -1):
            _pick(self.by_rank[rank], may_go, rank, found)
        mine = self._tenant(newcomer.request.tenant, newcomer.arrived)
        if len(self.tenants) > 1 and not self._exceeds(mine.work_s + newcomer.work_s, newcomer.work_s):
            most = max(self.tenants.values(), key=lambda tenant: tenant.work_s)
            if most is not mine and self._exceeds(most.work_s, newcomer.work_s):
                _pick(most.waiting, may_go, newcomer.rank, found)
        return found

    def _exceeds(self, work_s: float, newcomer_s: float) -> bool:
        return work_s * len(self.tenants) > (self.work_s + newcomer_s) * (1 + 1e-9)

    def _tenant(self, name: str, now: float) -> Tenant:
        tenant = self.tenants.get(name)
        if tenant is None:
            self._sweep(now)
            tenant = self.tenants[name] = Tenant()
        tenant.seen = now
        return tenant

    def _sweep(self, now: float) -> None:
        """Forget tenants without a request, waiting or in the last moments."""
        if now - self._swept >= RECENT_S:
            self._swept = now
            gone = [n for n, t in self.tenants.items() if not t.waiting and now - t.seen > RECENT_S]
            for name in gone:
                del self.tenants[name]


def _pick(waiting: dict[int, Ticket[Any, Any]], may_go: MayGo, rank: int, found: list[Ticket[Any, Any]]) -> None:
    for looked_at, ticket in enumerate(reversed(waiting.values())):
        if looked_at == MOST_LOOKED_AT or len(found) == MOST_VICTIMS:
            return
        if ticket.rank == rank and may_go(ticket) and ticket not in found:
            found.append(ticket)
