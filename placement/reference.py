"""The dispatch rules restated plainly: what dispatch.py and simulator.py must do, to read and to test
against.

Lists and dataclasses, no speed. Nothing serves or plans with it. docs/simulator.md tells the same in words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from placement.dispatch import EAGER_SHARE
from placement.plan import Group, Plan, group_kind, group_span, replica_profile
from placement.problem import Problem
from placement.tables import Catalogue
from placement.workload import Workload

StageTimes = list[tuple[float, float]]
Batching = Literal["eager"] | int
"""How a schedule forms batches: where one clears the queue sooner, or as large as can be up to this size."""


@dataclass(frozen=True)
class Replica:
    """One model on one group: seconds per stage for each batch size, and to wake up when it is parked."""

    model: int
    group: int
    latency: Mapping[int, tuple[float, ...]]
    wake: tuple[float, ...] | None
    ready: float


@dataclass(frozen=True)
class World:
    """What holds for a whole plan; lists are by model. `sizes`: those batches may have, ascending from 1."""

    replicas: list[list[Replica]]
    slack: list[float]
    cost: list[float]
    batch_from: list[float]
    sizes: list[int]
    lead: list[float]
    """By group: how long before its begin a batch is on its way."""


@dataclass
class Clock:
    """When each stage of a group is free, and which parked model is awake on it."""

    free: list[float]
    awake: int | None = None

    def copy(self) -> Clock:
        return Clock(list(self.free), self.awake)


@dataclass(frozen=True)
class Waiting:
    """An admitted request that has not begun."""

    deadline: float
    request: int
    model: int


@dataclass(frozen=True)
class Batch:
    """Requests that run together, and from when."""

    replica: Replica
    start: float
    members: list[Waiting]


@dataclass
class Fate:
    """What became of a request: a word of dispatch.REASONS and, if it ran, where, in which batch (numbered by
    start, then by group), from when, and when it was in each stage."""

    status: str
    group: int | None = None
    batch: int | None = None
    start: float = math.nan
    stages: StageTimes = field(default_factory=list)


def serve(
    problem: Problem,
    plan: Plan,
    workload: Workload,
    rule: str,
    max_batch: int,
    *,
    overtake: float = 0.005,
    capacity: int = 4096,
    ready: Mapping[tuple[str, int], float] | None = None,
) -> list[Fate]:
    """One Fate a request. `ready`: when the replica of (model, group) is loaded; 0 where absent."""
    world = describe(problem, plan, max_batch, ready or {})
    clocks = [Clock([0.0] * group.pp) for group in plan.groups]
    if rule == "shortest-queue":
        return _serve_shortest_queue(world, clocks, workload)
    return _Deadline(world, clocks, overtake, capacity).serve(workload)


def describe(problem: Problem, plan: Plan, max_batch: int, ready: Mapping[tuple[str, int], float]) -> World:
    """The costs of a plan, looked up in the profiles."""
    replicas: list[list[Replica]] = [[] for _ in problem.models]
    for m, model in enumerate(problem.models):
        for g, group in enumerate(plan.groups):
            entry = replica_profile(group, model.name, problem)
            if entry is not None and model.name in group.models + group.parked:
                load_s = tuple(size / _wake_bytes_per_s(group, plan, problem) for size in entry.stage_memory)
                if entry.wake is not None:
                    load_s = (entry.wake,) * group.pp
                wake = load_s if model.name in group.parked else None
                loaded = ready.get((model.name, g), 0.0)
                replicas[m].append(Replica(m, g, entry.stage_latency, wake, loaded))
    cost, sizes = [], {1}
    for model in problem.models:
        least = math.inf
        for kind in Catalogue(problem).classes:
            if entry := model.profile.find(kind.shape, kind.kind, kind.span):
                least = min(least, entry.tp * sum(entry.stage_latency[1]))
                sizes |= set(entry.stage_latency)
        cost.append(least / model.weight if math.isfinite(least) else 0.0)
    return World(
        replicas=replicas,
        slack=[model.slo.first_token - problem.overhead for model in problem.models],
        cost=cost,
        batch_from=[min((_batch_from(replica) for replica in some), default=math.inf) for some in replicas],
        sizes=sorted(size for size in sizes if size <= max(max_batch, 1)),
        lead=[_lead(g, replicas, problem.overhead) for g in range(len(plan.groups))],
    )


def _wake_bytes_per_s(group: Group, plan: Plan, problem: Problem) -> float:
    """The slowest node of all groups of the same shape, device kind and span: they wake at one speed."""
    cluster = problem.cluster

    def alike(other: Group) -> tuple[object, ...]:
        return other.shape, group_kind(other, problem), group_span(other, problem)

    return min(
        cluster.nodes[cluster.devices[cluster.device_index[name]].node].load_bandwidth
        for other in plan.groups
        if alike(other) == alike(group)
        for name in other.devices
    )


def _lead(group: int, replicas: list[list[Replica]], overhead: float) -> float:
    """Half of the group's shortest first stage; nothing where the way takes no time."""
    firsts = [replica.latency[1][0] for some in replicas for replica in some if replica.group == group]
    return min((first / 2 for first in firsts), default=0.0) if overhead else 0.0


def _batch_from(replica: Replica) -> float:
    """The fewest requests that an idle group clears sooner in full batches of one size than one by one."""
    fewest = math.inf
    for size, latency in replica.latency.items():
        if size > 1 and max(latency) < EAGER_SHARE * size * max(replica.latency[1]):
            for rounds in count(1):
                if clear_s(replica, size, rounds * size) < EAGER_SHARE * clear_s(replica, 1, rounds * size):
                    fewest = min(fewest, rounds * size)
                    break
    return fewest


def clear_s(replica: Replica, size: int, waiting: int) -> float:
    """Seconds until an idle group has served `waiting` requests in batches of one size."""
    rounds = math.ceil(waiting / size)
    return sum(replica.latency[size]) + (rounds - 1) * max(replica.latency[size])


def begin(replica: Replica, clock: Clock, now: float) -> float:
    """When a batch taken now begins: the replica is loaded and the first stage free."""
    return max(now, replica.ready, clock.free[0])


def run(replica: Replica, clock: Clock, size: int, now: float) -> StageTimes:
    """Run one batch on this clock: each stage when the one before is done and this one is free. A sleeping
    model first wakes: each stage's weights come as soon as the batch has begun and the stage is free."""
    start = begin(replica, clock, now)
    if replica.wake is not None and clock.awake != replica.model:
        clock.free = [max(start, free) + load_s for free, load_s in zip(clock.free, replica.wake, strict=True)]
        clock.awake = replica.model
    done = max(now, replica.ready)
    times = []
    for stage, seconds in enumerate(replica.latency[size]):
        entered = max(done, clock.free[stage])
        done = clock.free[stage] = entered + seconds
        times.append((entered, done))
    return times


def finish(replica: Replica, clock: Clock, size: int, now: float) -> float:
    """When a batch taken now would leave the last stage."""
    return run(replica, clock.copy(), size, now)[-1][1]


def _serve_shortest_queue(world: World, clocks: list[Clock], workload: Workload) -> list[Fate]:
    """Bound at arrival to the group whose last stage is free first, first come first served, one by one;
    refused when it would be late there."""
    fates = []
    for arrival, model in _requests(workload):
        if not world.replicas[model]:
            fates.append(Fate("no-replica"))
            continue
        chosen = min(world.replicas[model], key=lambda replica: max(clocks[replica.group].free[-1], replica.ready))
        clock = clocks[chosen.group]
        if finish(chosen, clock, 1, arrival) > arrival + world.slack[model]:
            fates.append(Fate("refused"))
            continue
        start = begin(chosen, clock, arrival)
        fates.append(Fate("served", chosen.group, len(fates), start, run(chosen, clock, 1, arrival)))
    return _number_batches(fates)


@dataclass
class _Deadline:
    """The deadline rule: everybody waits in one queue, with a schedule that keeps all deadlines."""

    world: World
    clocks: list[Clock]
    overtake: float
    capacity: int
    schedule: list[Batch] = field(default_factory=list)
    admitted: int = 0
    overtaken: int = 0
    begun: int = 0
    stuck: bool = False
    """A newcomer was refused since a batch last began."""
    fates: list[Fate] = field(default_factory=list)

    def serve(self, workload: Workload) -> list[Fate]:
        for request, (arrival, model) in enumerate(_requests(workload)):
            self.launch(arrival)
            self.fates.append(Fate("refused"))
            newcomer = Waiting(arrival + self.world.slack[model], request, model)
            self.fates[request].status = self.offer(newcomer, arrival)
        self.launch(math.inf)
        return _number_batches(self.fates)

    def due(self, batch: Batch) -> float:
        """When it is handed over to its group."""
        return batch.start - self.world.lead[batch.replica.group]

    def next_due(self) -> float:
        return min((self.due(batch) for batch in self.schedule), default=math.inf)

    def launch(self, now: float) -> None:
        """Hand over every batch that is due."""
        for batch in [batch for batch in self.schedule if self.due(batch) <= now]:
            self.schedule.remove(batch)
            replica = batch.replica
            times = run(replica, self.clocks[replica.group], len(batch.members), batch.start)
            for member in batch.members:
                fate = self.fates[member.request]
                fate.group, fate.batch, fate.start, fate.stages = (
                    replica.group,
                    self.begun,
                    batch.start,
                    times,
                )
            self.begun += 1
            self.stuck = False

    def offer(self, newcomer: Waiting, now: float) -> str:
        """Admit or refuse; returns the newcomer's status."""
        waiting = sorted((m for batch in self.schedule for m in batch.members), key=_by_deadline)
        if not self.world.replicas[newcomer.model]:
            return "no-replica"
        if len(waiting) >= self.capacity:
            return "queue-full"
        if self.place_alone(newcomer, waiting, now):
            self.admitted += 1
            return "served"
        if self.stuck:
            return "refused"
        everybody = sorted([*waiting, newcomer], key=_by_deadline)
        schedule = self.find_schedule(everybody, now)
        if schedule is None and self.overtaken + 1 <= self.overtake * self.admitted:
            schedule = self.overtake_one(everybody, newcomer, now)
        if schedule is None:
            self.stuck = True
            return "refused"
        self.schedule = schedule
        self.admitted += 1
        return "served"

    def place_alone(self, newcomer: Waiting, waiting: list[Waiting], now: float) -> bool:
        """Those due before the newcomer keep their places; it and those due after it are placed anew, each
        alone. Not if enough of its model wait alone to make a batch, nor if that would break up a batch or
        make one late."""
        alone = sum(len(batch.members) == 1 and batch.replica.model == newcomer.model for batch in self.schedule)
        if len(self.world.sizes) > 1 and alone + 1 >= self.world.batch_from[newcomer.model]:
            return False
        after = [other for other in waiting if other.deadline > newcomer.deadline]
        if after and any(len(batch.members) > 1 for batch in self.schedule):
            return False
        schedule = [batch for batch in self.schedule if batch.members[0] not in after]
        clocks = [clock.copy() for clock in self.clocks]
        for batch in schedule:
            run(batch.replica, clocks[batch.replica.group], len(batch.members), batch.start)
        for one in [newcomer, *after]:
            replica = self.first_to_finish(clocks, one, now)
            if replica is None:
                return False
            clock = clocks[replica.group]
            schedule.append(Batch(replica, begin(replica, clock, now), [one]))
            run(replica, clock, 1, now)
        self.schedule = schedule
        return True

    def overtake_one(self, everybody: list[Waiting], newcomer: Waiting, now: float) -> list[Batch] | None:
        """The schedule without the costliest of those who wait, if that costs more than the newcomer."""
        cost = self.world.cost
        costliest = max((other for other in everybody if other != newcomer), key=lambda o: cost[o.model], default=None)
        if costliest is None or cost[costliest.model] <= cost[newcomer.model]:
            return None
        schedule = self.find_schedule([other for other in everybody if other != costliest], now)
        if schedule is not None:
            self.fates[costliest.request].status = "expired"
            self.overtaken += 1
        return schedule

    def find_schedule(self, everybody: list[Waiting], now: float) -> list[Batch] | None:
        """The first that keeps all deadlines: eager batches, none, pairs (the second size), the largest."""
        sizes = self.world.sizes
        attempts: list[Batching] = [1] if len(sizes) == 1 else ["eager", 1, sizes[1], sizes[-1]]
        schedules = (self.build_schedule(everybody, now, batching) for batching in attempts)
        return next((schedule for schedule in schedules if schedule is not None), None)

    def build_schedule(self, everybody: list[Waiting], now: float, batching: Batching) -> list[Batch] | None:
        """By deadline, each on the replica that finishes it first, with the next of its model in its batch;
        None once one would be late."""
        clocks = [clock.copy() for clock in self.clocks]
        schedule = []
        left = list(everybody)
        while left:
            head = left[0]
            replica = self.first_to_finish(clocks, head, now)
            if replica is None:
                return None
            alike = [other for other in left if other.model == head.model]
            clock = clocks[replica.group]
            size = self.batch_size(replica, clock, head.deadline, len(alike), now, batching)
            schedule.append(Batch(replica, begin(replica, clock, now), alike[:size]))
            run(replica, clock, size, now)
            left = [other for other in left if other not in alike[:size]]
        return schedule

    def first_to_finish(self, clocks: list[Clock], one: Waiting, now: float) -> Replica | None:
        """The replica that finishes this request, alone, first (ties: first in the plan); None if that is
        late."""
        finishes = [finish(r, clocks[r.group], 1, now) for r in self.world.replicas[one.model]]
        if not finishes or min(finishes) > one.deadline:
            return None
        return self.world.replicas[one.model][finishes.index(min(finishes))]

    def batch_size(
        self, replica: Replica, clock: Clock, deadline: float, waiting: int, now: float, batching: Batching
    ) -> int:
        """Of the sizes that have so many members and are done by the deadline of the first: eager, from the
        smallest on, each that clears all who wait from an idle group clearly sooner; else the largest up to
        the cap."""
        fitting = [
            size
            for size in self.world.sizes
            if size == 1
            or (size <= waiting and size in replica.latency and finish(replica, clock, size, now) <= deadline)
        ]
        if batching == "eager":
            chosen = fitting[0]
            for size in fitting[1:]:
                if clear_s(replica, size, waiting) < EAGER_SHARE * clear_s(replica, chosen, waiting):
                    chosen = size
            return chosen
        return max(size for size in fitting if size <= batching)


def _requests(workload: Workload) -> list[tuple[float, int]]:
    return list(zip(workload.arrival.tolist(), workload.model.tolist(), strict=True))


def _by_deadline(one: Waiting) -> tuple[float, int]:
    return one.deadline, one.request


def _number_batches(fates: list[Fate]) -> list[Fate]:
    """Number the batches by when they began, then by group."""
    ran = [fate for fate in fates if fate.group is not None]
    places = sorted({(fate.start, fate.group) for fate in ran})
    for fate in ran:
        fate.batch = places.index((fate.start, fate.group))
    return fates
