"""Which of several lent groups that are alike come back first: those whose return costs training least. Pure functions.

Groups that nobody uses or that hold only workers their jobs can do without (flexible ones), then by Lyra's preemption
cost, then those whose jobs have written a checkpoint last.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from training.loans import Harm, Spread

ELSEWHERE = -1
"""All devices of a job that are in no lent group: one place, that nobody takes."""


@dataclass(frozen=True)
class Held:
    """What a job has, and what it would lose."""

    job: str
    devices: tuple[str, ...]
    fewest: int
    """Workers it cannot run without."""
    unsaved_s: float = 0.0
    """Since its last checkpoint."""


@dataclass(frozen=True)
class Victim:
    """A group that comes back, and what that does to training after those before it."""

    group: str
    workers: int
    preempted: tuple[str, ...]
    """Jobs that are left with too few; the others shrink."""
    cost: float
    """Lyra's: of each preempted job one over the groups that it is on."""
    unsaved_s: float
    """Of preempted jobs, in all."""


def order_victims(
    groups: Mapping[str, Collection[str]], held: Sequence[Held], quotas: Mapping[str, int], alike: Mapping[str, str]
) -> list[Victim]:
    """The groups to take back, in order. `groups`: devices of those that are lent, the first to be taken first where
    all else is the same; `alike`: to whom a group is; `quotas`: how many of each of these come back."""
    names = list(groups)
    place = {device: number for number, name in enumerate(names) for device in groups[name]}
    spread: Spread = {}
    for number, one in enumerate(held):
        there = spread[number] = dict[int, int]()
        for device in one.devices:
            at = place.get(device, ELSEWHERE)
            there[at] = there.get(at, 0) + 1
    spare = {number: len(one.devices) - one.fewest for number, one in enumerate(held)}
    unsaved = {number: one.unsaved_s for number, one in enumerate(held)}
    harm = Harm(list(range(len(names))), spread, spare, unsaved)
    left, victims = dict(quotas), list[Victim]()
    while could := [node for node in harm.cost if left.get(alike[names[node]], 0) > 0]:
        node = min(could, key=lambda node: (*harm.key(node), node))
        jobs = tuple(held[job].job for job in sorted(harm.preempted(node)))
        victims.append(Victim(names[node], harm.workers[node], jobs, harm.cost[node], harm.unsaved_s[node]))
        left[alike[names[node]]] -= 1
        harm.take(node)
    return victims
