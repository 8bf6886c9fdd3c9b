"""The groups in use as the arrays that the compiled rules read: made anew when a replica comes or goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from placement.clocks import Floats
from placement.generation.engine_tables import engines_of
from placement.generation.step_cost import SECONDS
from placement.plan import Plan
from placement.tables import Catalogue
from router import door
from router.correction import FORGET_AFTER_S, corrected, forgotten, late, usual
from router.floor_memory import BATCHES, MAY_LEAVE_OPEN, FloorMemory
from router.live_group import Member
from router.world_memory import WorldMemory

G = TypeVar("G")


class Pool(Generic[G]):
    """Tables, clocks and queue of the one-pass rule; engines and lines of the generating one. What is known of groups
    that stay, and of requests, is taken over from the pool before."""

    def __init__(
        self,
        catalogue: Catalogue,
        members: Sequence[Member[G]],
        capacity: int,
        slots: int,
        step_tokens: int,
        before: Pool[G] | None = None,
    ) -> None:
        usable = [(member, group) for member in members if (group := member.usable()) is not None]
        self.members = [member for member, _ in usable]
        plan = Plan(tuple(group for _, group in usable))
        tables = catalogue.tables(plan)
        self.models = len(tables.slack)
        self.memory = FloorMemory(tables, capacity)
        self.floor = self.memory.floor
        self.arrays = (self.memory.floats, self.memory.ints, self.memory.bools)
        # Who is asleep is known to the groups, and reckoned with apart (Hall.wake_s).
        engines = engines_of(plan, catalogue, early=False)._replace(wake=np.zeros(0))
        self.world = WorldMemory(engines, catalogue.stages, len(plan.groups), slots, step_tokens)
        self.mirror = self.world.mirror
        self.all_arrays = (*self.arrays, self.world.floats, self.world.ints, self.world.bools, self.world.status)
        self.own_tpot: list[float] = engines.tpot.tolist()
        self._profiled: Floats = self.floor.tables.latency.copy()
        self._profiled_cost = engines.cost
        self._profiled_through: Floats = self.floor.tables.through.copy()
        self.replica_member = [self.members[group] for group in tables.replica_group.tolist()]
        self.engine_member = [self.members[group] for group in engines.group.tolist()]
        self.lane_engine = engines.lane_engine.tolist()
        self.engines_of_model: list[list[int]] = [[] for _ in range(self.models)]
        self.engine_at: dict[tuple[int, int], int] = {}
        """By group and model."""
        self.generates_on: list[list[int]] = [[] for _ in self.members]
        """Of each group, the generating models there."""
        for engine, (group, model) in enumerate(zip(engines.group.tolist(), engines.model.tolist(), strict=True)):
            self.engines_of_model[model].append(engine)
            self.engine_at[group, model] = engine
            self.generates_on[group].append(model)
        self.replicas: list[int] = np.diff(tables.first_replica).tolist()
        self.shares = _shares(plan, catalogue)
        self.is_mixed = any(self.shares[m] - {m} for m, engines in enumerate(self.engines_of_model) if engines)
        if self.is_mixed:  # engines look at the clocks behind all who wait
            self.memory.ints[MAY_LEAVE_OPEN] = 0
        self._late: dict[int, float] = {} if before is None else before._late
        """Of each model, by how much one batch in ten exceeds what is usual."""
        self._views()
        self._take_over(before)

    def _views(self) -> None:
        """Memoryviews: an item costs a third of what it costs through numpy."""
        begun, world = self.floor.begun, self.mirror.world
        self.begun: tuple[Any, ...] = tuple(_view(column) for column in begun)
        self.drained: Any = _view(self.floor.state.tail.drained)
        self.margin_s: Any = _view(self.floor.margin)
        """Of each model, by how much a request should be done before its deadline, as far as anybody knows."""
        self._placed: Any = _view(self.floor.state.queue.length)
        self._unplaced: Any = _view(self.floor.backlog.bounds)
        self.prompt: Any = _view(world.sequences.prompt)
        self.deadline: Any = _view(world.sequences.deadline)
        self.latest: Any = _view(world.sequences.latest)
        self.out: Any = _view(self.mirror.out)
        self.head: Any = _view(world.lines.head)
        self.waiting: Any = _view(world.lines.waiting)
        self.cached: Any = _view(world.lanes.cached)
        self.used: Any = _view(world.used)
        self.event: Any = _view(self.mirror.event)

    @property
    def queued(self) -> int:
        """One-pass requests that wait, with a place in the schedule or without."""
        return int(self._placed[0] + self._unplaced[1] - self._unplaced[0])

    def _fastest(self, model: int) -> float:
        tables = self.floor.tables
        groups = tables.replica_group[tables.first_replica[model] : tables.first_replica[model + 1]]
        return float(tables.through[groups, model].min(initial=np.inf))

    def _take_over(self, before: Pool[G] | None) -> None:
        for index, member in enumerate(self.members):
            for model, factor in member.factor.items():
                self._correct(index, model, factor)
        self.fastest = [self._fastest(model) for model in range(self.models)]
        """Seconds of a one-pass request on its fastest group, idle."""
        for model in range(self.models):
            self._set_margin(model)
        if before is None:
            for index, member in enumerate(self.members):
                member.index = index
            return
        mine, theirs = self.floor.state, before.floor.state
        for member in before.members:
            member.free = theirs.clocks.free[member.index].copy()
            member.awake = int(theirs.clocks.awake[member.index])
            member.index = -1
        for index, member in enumerate(self.members):
            member.index = index
            if member.free is not None:
                mine.clocks.free[index] = member.free
                mine.clocks.drained[index] = member.free[member.spec.pp - 1]
                mine.clocks.awake[index] = member.awake
        mine.totals[:2] = theirs.totals[:2]
        self.memory.ints[BATCHES] = before.memory.ints[BATCHES]
        for new, old in zip(self.mirror.world.learned, before.mirror.world.learned, strict=True):
            new[:] = old
        slots = len(self.mirror.slack) - len(self.lane_engine)
        for name in ("prompt", "deadline", "latest", "expected"):
            old = getattr(before.mirror.world.sequences, name)
            getattr(self.mirror.world.sequences, name)[:slots] = old[:slots]
        self.mirror.slack[:slots] = before.mirror.slack[:slots]

        for model, replicas in enumerate(self.replicas):
            if not replicas:
                self.fastest[model] = before.fastest[model]

    def alternatives(self, model: str) -> tuple[tuple[str, float], ...]:
        """The groups that take requests for the model, and when each is free of all that is scheduled."""
        return tuple((one.name, self.drained[one.index]) for one in self.members if model in one.ready)

    def observe(self, member: Member[G], model: int, observed_s: float, planned_s: float, now: float) -> None:
        """Learn from what a prompt alone took on a group."""
        factor = member.factor.get(model, 1.0)
        self._set_factor(member, model, corrected(factor, observed_s, planned_s), now)

    def observe_batch(self, member: Member[G], model: int, observed_s: float, planned_s: float, now: float) -> None:
        """Learn from a batch. The clocks run as batches usually do, lest devices stand idle until the latest time one
        may be done; what one in ten takes beyond that is kept free before the deadline of whoever comes."""
        self._late[model] = late(self._late.get(model, 1.0), observed_s, planned_s)
        factor = member.factor.get(model, 1.0)
        self._set_factor(member, model, usual(factor, observed_s, planned_s), now)
        self._set_margin(model)

    def _set_margin(self, model: int) -> None:
        over = self._late.get(model, 1.0) - 1.0
        self.margin_s[model] = over * self.fastest[model] if over else 0.0

    def forget(self, model: int, now: float) -> bool:
        """Doubt what was learned of a model that could be served if it were not so. False: nothing was."""
        slowed = [member for member in self.members if member.factor.get(model, 1.0) > 1]
        for member in slowed:
            if now - member.corrected_at[model] >= FORGET_AFTER_S:
                self._set_factor(member, model, forgotten(member.factor[model]), now)
        has_margin = self._late.get(model, 1.0) > 1.0
        if has_margin:
            self._late[model] = forgotten(self._late[model])
            self._set_margin(model)
        return bool(slowed) or has_margin

    def _set_factor(self, member: Member[G], model: int, factor: float, now: float) -> None:
        if factor != member.factor.get(model, 1.0):
            member.factor[model] = factor
            member.corrected_at[model] = now
            self.fastest[model] = self._correct(member.index, model, factor)

    def _correct(self, index: int, model: int, factor: float) -> float:
        """From now on the model takes `factor` times what was profiled on this group. Returns its seconds on its
        fastest group, idle."""
        engine = self.engine_at.get((index, model))
        if engine is not None:
            profiled = self._profiled_cost[engine]
            self.mirror.world.engines.cost[engine, :, SECONDS] = profiled[:, SECONDS] * factor
        return door.correct(*self.arrays, self._profiled, self._profiled_through, index, model, factor)

    def move_clocks(self, index: int, seconds: float, now: float) -> None:
        """What is under way on the group ends later, or earlier, than reckoned; never before now."""
        door.move(*self.arrays, index, seconds, now)


def _view(column: Any) -> Any:
    return memoryview(column)


def _shares(plan: Plan, catalogue: Catalogue) -> list[frozenset[int]]:
    """For each model, the models that share a group with it, and itself."""
    shares: list[set[int]] = [{m} for m in range(len(catalogue.problem.models))]
    for group in plan.groups:
        together = {catalogue.model_index[name] for name in group.models + group.parked}
        for model in together:
            shares[model] |= together
    return [frozenset(one) for one in shares]
