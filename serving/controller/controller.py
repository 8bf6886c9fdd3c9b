"""Brings the running groups to the plan and keeps them there, without dropping a request.

Decides when groups start, load, drain and stop, and tells the router which take requests. What a group does is
runner.py's, what a change of plan needs change.py's, what an operator is told views.py's.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from placement.cluster import Cluster
from placement.errors import InputError
from placement.plan import Plan, check_plan
from placement.problem import Problem
from router import LiveGroup, Router
from serving.controller.change import Change, plan_change
from serving.controller.journal import Journal
from serving.controller.ledger import IDLE, Ledger, Owner
from serving.controller.proving import Proving
from serving.controller.runner import GroupRunner, Setup
from serving.controller.steady import steadily

DRAIN_S = 600.0
"""What open requests of a group that goes get to finish: as long as an answer may take."""
RECENTLY_S = 60.0
"""A model is ready while one of its groups has answered within this time."""
_LOOK_S = 0.02


@dataclass(frozen=True)
class PlanInForce:
    """A plan, whose it is, and since when."""

    plan: Plan
    why: str
    at: float = field(default_factory=time.time)
    """Unix seconds."""


class Controller:
    """Everything happens on one event loop; changes of plan one after the other."""

    def __init__(self, problem: Problem, router: Router[Any], setup: Setup, journal: Journal | None = None) -> None:
        self.problem = problem
        self.router = router
        self.journal = journal or Journal()
        self.ledger = Ledger(device.name for device in problem.cluster.devices)
        self.in_force = PlanInForce(Plan(()), "nothing runs yet")
        self.runners: dict[str, GroupRunner] = {}
        """By name, those of the plan in its order."""
        self.before_change: Callable[[Collection[str]], Awaitable[None]] = _nothing
        """Called before groups change, with the devices that new ones need: when it returns, no job has any of these,
        and devices that were lent are back."""
        self._leaving: dict[str, GroupRunner] = {}
        self._setup = setup
        self._names = count()
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Change]] = set()
        self._proving = Proving()
        self._prober: asyncio.Task[None] | None = None
        if setup.foreign:
            router.reckon_with(self._wake_s)

    async def start(self, plan: Plan, why: str) -> None:
        """Start all groups of the first plan, and return when each is there or has failed to be."""
        self._check(plan)
        async with self._changing:
            started = [self._start(group_index, plan) for group_index in range(len(plan.groups))]
            self.in_force = PlanInForce(plan, why)
            self.journal.note("plan", "plan", "started", why=why, groups=len(plan.groups))
            self.publish()
            await asyncio.gather(*(runner.settled() for runner in started))
            self.publish()
        probing = steadily(self._proving.every_s, self._probe, self.journal, "probes")
        self._prober = asyncio.create_task(probing, name="prober")

    async def apply(self, plan: Plan, why: str) -> Change:
        """Bring what runs to a new plan. An InputError says why it cannot be; the old plan then stays in force. Whoever
        waits for it may leave: what has begun goes on to its end."""
        self._check(plan)
        change = asyncio.create_task(self._apply(plan, why), name="change of plan")
        self._changes.add(change)
        change.add_done_callback(self._end_change)
        return await asyncio.shield(change)

    async def move(self, cluster: Cluster, why: str) -> None:
        """The devices are these from now on: groups that had others are gone, whose requests went with them or are
        offered elsewhere; new devices are idle until a plan uses them."""
        async with self._changing:
            known = {device.name for device in cluster.devices}
            await self.before_change([device for device in self.ledger.owners if device not in known])
            lost = [runner for runner in self.runners.values() if not known.issuperset(runner.spec.devices)]
            for runner in lost:
                self._leaving[runner.name] = self.runners.pop(runner.name)
            self.publish()
            await asyncio.gather(*(self._end(runner) for runner in lost))
            self.ledger.keep(device.name for device in cluster.devices)
            self.problem = replace(self.problem, cluster=cluster)
            self.router.move(cluster)
            left = tuple(group for group in self.in_force.plan.groups if known.issuperset(group.devices))
            if lost:
                self.in_force = PlanInForce(Plan(left), f"what is left of the plan before: {why}")
            self.journal.note("nodes", "nodes", "changed", why=why, lost=[runner.name for runner in lost])

    async def reload(self, model: str, why: str) -> None:
        """Its files have changed: load it anew, one group after the other, so that others serve it meanwhile."""
        async with self._changing:
            await self.before_change(())
            self.journal.note("model", model, "replaced", why=why)
            for runner in list(self.runners.values()):
                if model in runner.spec.models + runner.spec.parked:
                    await runner.reload(model, partial(self._emptied, runner))

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Take no more requests, let those that are open finish within the bound, end all processes."""
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)
        self.router.close()
        changes = list(self._changes)
        for change in changes:
            change.cancel()
        await asyncio.gather(*changes, return_exceptions=True)
        async with self._changing:
            await self._wait(lambda: not self.router.running, drain_s)
            await asyncio.gather(*(runner.stop() for runner in (*self.runners.values(), *self._leaving.values())))

    async def emptied(self, runner: GroupRunner, bound_s: float) -> bool:
        """Wait until a group has no requests any more; False if that takes longer."""
        handle = runner.handle
        return handle is None or await self._wait(lambda: not self.router.open_on(handle), bound_s)

    # What is told

    @property
    def is_changing(self) -> bool:
        """Groups or models are being started, loaded or ended for a plan."""
        return self._changing.locked()

    def unready(self) -> dict[str, str]:
        """Each model that cannot be served at the moment, and why."""
        return {model.name: why for model in self.problem.models if (why := self._why_unready(model.name))}

    def state_of(self, model: str) -> str:
        """ready, parked, loading, down, or unplaced."""
        holders = [runner for runner in self.runners.values() if model in runner.spec.models + runner.spec.parked]
        ready = [runner for runner in holders if model in runner.ready]
        if any(model in runner.spec.models for runner in ready):
            return "ready"
        if ready:
            return "parked"
        if not holders:
            return "unplaced"
        return "loading" if any(runner.state == "starting" for runner in holders) else "down"

    def _why_unready(self, model: str) -> str:
        now = time.monotonic()
        holders = [runner for runner in self.runners.values() if model in runner.spec.models + runner.spec.parked]
        if any(model in runner.ready and runner.proven.get(model, 0.0) > now - RECENTLY_S for runner in holders):
            return ""
        if any(model in runner.ready and model in runner.parked for runner in holders):
            return ""
        if not holders:
            return "no group of the plan holds it"
        one = holders[0]
        reason = one.failed.get(model) or one.last_death
        return f"{self.state_of(model)} on group {one.name}" + (f": {reason}" if reason else "")

    def _wake_s(self, model: str) -> float:
        """Of the groups that have it, the one where it is awake soonest."""
        return min((one.wake_s(model) for one in self.runners.values() if model in one.ready), default=0.0)

    # How groups come and go

    async def _apply(self, plan: Plan, why: str) -> Change:
        async with self._changing:
            change = plan_change(
                {name: runner.spec for name, runner in self.runners.items()}, plan, self.problem, self._setup.foreign
            )
            await self.before_change([device for one in change.fresh for device in one.spec.devices])
            fresh = await self._start_fresh(change, plan)
            self.in_force = PlanInForce(plan, why)
            self.journal.note("plan", "plan", "replaced", why=why, **change.facts())
            for name in change.gone:
                self._leaving[name] = self.runners.pop(name)
            self.runners.update({runner.name: runner for runner in fresh})
            self.runners = self._in_order(plan)
            for runner in fresh:
                self._own(runner)
            self.publish()
            await self._change_kept(change)
            await asyncio.gather(*(self._retire(self._leaving[name]) for name in change.gone))
            for runner in fresh:
                runner.may_load.set()
            reasons = await asyncio.gather(*(runner.settled() for runner in fresh))
            self.publish()
            for runner, reason in zip(fresh, reasons, strict=True):
                if reason:
                    self.journal.note("group", runner.name, "not as planned", reason=reason)
            return change

    def _check(self, plan: Plan) -> None:
        check_plan(plan, self.problem, "plan")
        self._setup.check(plan)

    def _start(self, index: int, plan: Plan) -> GroupRunner:
        runner = self._make(index, plan)
        self.runners[runner.name] = runner
        self._own(runner)
        runner.start()
        return runner

    def _make(self, index: int, plan: Plan) -> GroupRunner:
        name = f"g{next(self._names)}"
        return GroupRunner(name, plan.groups[index], self._setup, self.journal, self.publish)

    def _end_change(self, change: asyncio.Task[Change]) -> None:
        self._changes.discard(change)
        if not change.cancelled():
            change.exception()  # looked at: the journal has it, should nobody wait any more

    async def _start_fresh(self, change: Change, plan: Plan) -> list[GroupRunner]:
        """Those there is room for are loaded, the others have their processes ready; if one cannot, none stays."""
        runners = [self._make(one.index, plan) for one in change.fresh]
        for one, runner in zip(change.fresh, runners, strict=True):
            idle = [device for device in runner.spec.devices if self.ledger.owners[device] == IDLE]
            self.ledger.move(idle, IDLE, Owner("group", runner.name))  # before anybody else has them
            runner.start(may_load=one.beside)
        try:
            for one, runner in zip(change.fresh, runners, strict=True):
                await runner.met.wait()
                reason = await runner.settled() if one.beside else runner.last_death
                if reason:
                    self.journal.note("plan", "plan", "not replaced", reason=reason)
                    raise InputError(f"plan: a group cannot be started, the old plan stays: {reason}")
        except BaseException:
            await asyncio.gather(*(runner.stop() for runner in runners))
            for owner in (Owner("group", runner.name) for runner in runners):
                self.ledger.move(self.ledger.owned_by(owner), owner, IDLE)
            raise
        return runners

    async def _change_kept(self, change: Change) -> None:
        for kept in change.kept:
            runner = self.runners[kept.name]
            reason = await runner.change(kept.spec, load_first=kept.loads_first, empty=partial(self._emptied, runner))
            if reason:
                self.journal.note("group", kept.name, "not as planned", reason=reason)

    async def _retire(self, runner: GroupRunner) -> None:
        """Its requests go on to their end, or to the bound; then it stops."""
        await self._emptied(runner, None)
        await self._end(runner)

    async def _end(self, runner: GroupRunner) -> None:
        """Its devices are nobody's."""
        owner = Owner("group", runner.name)
        await runner.stop()
        self.ledger.move(self.ledger.owned_by(owner), owner, IDLE)
        del self._leaving[runner.name]
        self.journal.note("group", runner.name, "stopped")

    async def _emptied(self, runner: GroupRunner, model: str | None) -> None:
        handle = runner.handle
        if handle is not None:
            await self._wait(lambda: not self.router.open_on(handle, model), DRAIN_S)

    async def _wait(self, holds: Callable[[], bool], bound_s: float) -> bool:
        """Until it holds; False if it does not within the bound."""
        deadline = time.monotonic() + bound_s
        while not (is_so := holds()) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
        return is_so

    def _own(self, runner: GroupRunner) -> None:
        """Its devices are its own from now on, whoever served on them before."""
        for device in runner.spec.devices:
            self.ledger.move([device], self.ledger.owners[device], Owner("group", runner.name))

    def _in_order(self, plan: Plan) -> dict[str, GroupRunner]:
        places = {group.devices: index for index, group in enumerate(plan.groups)}
        return dict(sorted(self.runners.items(), key=lambda item: places[item[1].spec.devices]))

    def publish(self) -> None:
        """Tell the router which groups take requests for which models, and when those of the others will be back."""
        back_by: dict[str, float] = {}
        for runner in self.runners.values():
            if runner.expected_at is not None:
                for model in (*runner.spec.models, *runner.spec.parked):
                    back_by[model] = min(runner.expected_at, back_by.get(model, math.inf))
        groups = (
            LiveGroup(
                name=runner.name,
                spec=runner.spec,
                handle=runner.handle,
                ready=frozenset(runner.ready),
                draining=runner.is_lent,
                back_at=runner.back_at,
            )
            for runner in self.runners.values()
            if runner.handle is not None and runner.state == "serving"
        )
        self.router.apply(groups, back_by)

    async def _probe(self) -> None:
        await asyncio.gather(*(self._proving.prove(runner) for runner in list(self.runners.values())))


async def _nothing(needed: Collection[str]) -> None:
    return
