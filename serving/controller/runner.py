"""One group of the plan, kept running: started, loaded, proven to work, started again when it dies, stopped.

Knows its processes and models; nothing of the router, of other groups, or of which plan it belongs to.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from placement.errors import InputError
from placement.plan import Group as PlannedGroup
from placement.plan import Plan
from serving.controller.expert_files import Places
from serving.controller.foreign import is_foreign
from serving.controller.group_experts import GroupExperts, Placed
from serving.controller.journal import Journal
from serving.controller.parking import ParkingGroup
from serving.controller.probe import Probe, probe
from serving.controller.to_its_end import to_its_end
from serving.worker.group import Group, GroupLost, GroupSpec, RequestFailed, start_group
from serving.worker.launcher import Launcher
from serving.worker.messages import ModelSpec
from serving.worker.room import OpenRoom, Room, local_room

START_S = 60.0
"""Within which a group's processes must have met."""
BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Before each start after a death, the last for all further ones."""
LOAD_AGAIN_S = (2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Before each attempt to load what could not be loaded, the last for all further ones."""
GRACE_S = 0.5
"""What our own workers get to end: they have nothing to put away."""
HEALTHY_S = 60.0
"""A group that lived so long starts again as if for the first time."""

Empty = Callable[[str], Awaitable[None]]
"""Of a model: done when no request of it is open on the group any more."""
State = Literal["starting", "serving", "down", "stopped"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all groups share."""

    launcher: Launcher
    devices: Mapping[str, str]
    """The plan's names of devices (node/number) as workers call them (cpu:0)."""
    spec_of: Callable[[PlannedGroup, str], ModelSpec]
    """How a model is loaded onto a group."""
    probes: Mapping[str, Probe]
    check: Callable[[Plan], None] = lambda plan: None
    """Refuses, by an InputError, a plan that groups could not be brought to."""
    wake_s: Callable[[PlannedGroup, str], float | None] = lambda group, model: None
    """How long a model that is parked on the group takes to be awake, if that was measured."""
    pace: float = 1.0
    start_s: float = START_S
    foreign: frozenset[str] = frozenset()
    """Models that run on engines of others."""
    open_room: OpenRoom = local_room
    """Where a group's processes are started and meet."""


@dataclass(eq=False)
class GroupRunner:
    """`on_change` is called whenever what can be served has changed."""

    name: str
    spec: PlannedGroup
    setup: Setup
    journal: Journal
    on_change: Callable[[], None]
    state: State = "starting"
    ready: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    """Models that could not be loaded, and why."""
    proven: dict[str, float] = field(default_factory=dict)
    """When each model last showed that it works (time.monotonic)."""
    is_lent: bool = False
    """Its devices are others' at the moment, or about to be."""
    back_at: float = 0.0
    """When a group that is called back is expected to serve (time.monotonic)."""
    expected_at: float | None = None
    """When one that is down is expected to serve (time.monotonic), by how long its last start took."""
    deaths: int = 0
    last_death: str = ""
    """Why it was lost last."""
    group: Group | None = None
    handle: Group | ParkingGroup | None = None
    """What runs requests; none while it is down."""
    experts: GroupExperts = field(init=False)
    met: asyncio.Event = field(default_factory=asyncio.Event)
    """Its processes are there."""
    may_load: asyncio.Event = field(default_factory=asyncio.Event)
    """There is room for its models."""
    _asleep: set[str] = field(default_factory=set)
    """Models whose weights wait in host memory, since the devices are lent."""
    _keeper: asyncio.Task[None] | None = None
    _in_a_row: int = 0
    _start_took_s: float | None = None
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.experts = GroupExperts(self.name, self.journal)

    def start(self, may_load: bool = True) -> None:
        """Without `may_load`, its processes wait for room before they load anything."""
        if may_load:
            self.may_load.set()
        self._keeper = asyncio.create_task(self._keep(), name=f"group {self.name}")

    async def settled(self) -> str:
        """Wait until every model is loaded, or something went wrong; says what, or nothing."""
        await self._settled.wait()
        if self.state == "serving":
            return next((f"{model}: {reason}" for model, reason in self.failed.items()), "")
        return self.last_death or f"group {self.name} was stopped"

    async def change(self, spec: PlannedGroup, *, load_first: bool, empty: Empty) -> str:
        """Take up and give up models so that the group holds those of `spec`; what went wrong, or nothing."""
        async with self._changing:
            old, self.spec = self.spec, spec
            group = self.group
            if group is None or self.state != "serving":
                return ""  # it comes up with the new ones
            gone = [model for model in _names(old) if _is_reloaded(old, spec, model)]
            new = [model for model in _names(spec) if _is_reloaded(old, spec, model)]
            both = set(gone) & set(new)
            try:
                if not load_first or both:
                    await self._give_up(group, gone if not load_first else sorted(both), empty)
                await self._take_up(group, new)
                if load_first:
                    await self._give_up(group, [model for model in gone if model not in both], empty)
                reason = await self._bring_experts(group)
            except GroupLost:
                return ""  # it comes up again, with the new ones
            return next((f"{model}: {self.failed[model]}" for model in new if model in self.failed), reason)

    async def move_experts(self, model: str, held: Placed, places: Places) -> int:
        """Bring a model's experts from where they are held to other places while it serves; how many were read. An
        InputError says why they stay."""
        async with self._changing:
            if self.group is None or model not in self.ready:
                raise InputError(f"group {self.name} does not serve {model!r} at the moment")
            return await self.experts.move(self.group, model, held, places)

    async def reload(self, model: str, empty: Empty) -> None:
        """Its directory is another: the old weights go when nobody is asking for them, and the new ones come."""
        async with self._changing:
            if self.group is None or model not in self.ready or self._asleep:
                return  # what is loaded next is the new one
            with contextlib.suppress(GroupLost):
                await self._give_up(self.group, [model], empty)
                await self._take_up(self.group, [model])

    async def put_to_sleep(self) -> None:
        """Free its devices: weights wait in host memory. A group that starts again meanwhile waits before it loads."""
        self.may_load.clear()
        async with self._changing:
            group = self.group
            if group is None or self.state != "serving":
                return
            group.gate.clear()
            with contextlib.suppress(GroupLost):
                if isinstance(self.handle, ParkingGroup):
                    await self.handle.rest()
                for model in sorted(self.ready - self.parked):
                    self._asleep.add(model)
                    await group.suspend(model)

    def expect_back(self, at: float) -> None:
        """It will serve from then on: requests may be sent, and wait at its gate."""
        self.is_lent, self.back_at = False, at

    async def wake_up(self) -> None:
        """Its devices are its own again."""
        self.may_load.set()
        async with self._changing:
            group = self.group
            if group is not None and self.state == "serving":
                try:
                    for model in sorted(self._asleep):
                        await group.resume(model)
                        self.proven[model] = time.monotonic()
                    await self._rouse()
                except InputError as error:  # it comes up again, and loads
                    group.give_up(f"group {self.name}: does not wake up: {error}")
                except GroupLost:
                    pass
                group.gate.set()
            self._asleep.clear()

    async def stop(self) -> None:
        """End its processes; requests that are open there fail."""
        is_told, self.state = self.state == "stopped", "stopped"
        self.ready.clear()
        if self._keeper is not None:
            if not is_told:
                self._keeper.cancel()
            await asyncio.wait((self._keeper,))
        self._settled.set()

    @property
    def provable(self) -> frozenset[str]:
        """Models that can be asked whether they work."""
        return frozenset(self.ready - self.parked | self._roused)

    @property
    def foreign(self) -> bool:
        """Its models run on engines of others."""
        return is_foreign(self.spec, self.setup.foreign)

    @property
    def parked(self) -> frozenset[str]:
        """Models of which one at a time is awake: where engines of others have more than one model, all of them."""
        spec = self.spec
        return frozenset(_names(spec) if spec.parked and self.foreign else spec.parked)

    @property
    def _roused(self) -> frozenset[str]:
        """Of those, the one that is awake on engines of others: it must answer probes."""
        handle = self.handle
        if not self.foreign or not isinstance(handle, ParkingGroup) or handle.awake is None:
            return frozenset()
        return frozenset((handle.awake,))

    def wake_s(self, model: str) -> float:
        """How long a model that waits its turn on another's engine will take to be awake, by the last time or its
        profile; of other parked models the router's tables know."""
        handle = self.handle
        if not isinstance(handle, ParkingGroup) or not self.foreign or handle.awake == model:
            return 0.0
        return handle.wake_s.get(model, 0.0)

    async def _rouse(self) -> None:
        """Of a group whose models are all parked, let the one that the plan has resident be awake."""
        resident = next((model for model in self.spec.models if model in self.ready & self.parked), None)
        if resident is not None and isinstance(self.handle, ParkingGroup):
            await self.handle.rouse(resident)

    @property
    def is_awake(self) -> bool:
        """It should answer what it is asked."""
        return self.state == "serving" and not self.is_lent and not self._asleep

    # Its life

    async def _keep(self) -> None:
        while True:
            began = time.monotonic()
            try:
                self.last_death = await self._live()
            except (GroupLost, InputError) as error:
                self.last_death = str(error)
            self.state = "down"
            self.deaths += 1
            self.met.set()  # or not: whoever waits for it need not wait longer
            self._in_a_row = 1 if time.monotonic() - began > HEALTHY_S else self._in_a_row + 1
            self._settled.set()
            pause_s = BACK_OFF_S[min(self._in_a_row, len(BACK_OFF_S)) - 1]
            if self._start_took_s is not None:
                self.expected_at = time.monotonic() + pause_s + self._start_took_s
            self.journal.note("group", self.name, "lost", reason=self.last_death, again_in_s=pause_s)
            self.on_change()
            await asyncio.sleep(pause_s)
            self.state = "starting"

    async def _live(self) -> str:
        """From the start of its processes to their end; why they ended."""
        async with self.setup.open_room(self.name, self.spec.devices) as room:
            return await self._live_in(room)

    async def _live_in(self, room: Room) -> str:
        planned, setup = self.spec, self.setup
        spec = GroupSpec(
            name=self.name,
            devices=tuple(setup.devices[device] for device in planned.devices),
            tp=planned.tp,
            pp=planned.pp,
            backend="nccl" if setup.devices[planned.devices[0]].startswith("cuda") else room.backend,
            tcp=room.tcp,
            pace=setup.pace,
            foreign=self.foreign,
        )
        began = time.monotonic()
        group = await start_group(spec, setup.launcher, setup.start_s)
        try:
            lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            group.on_lost = lambda reason: None if lost.done() else lost.set_result(reason)
            if group.lost is not None:
                return group.lost
            self.group = group
            wake_s = {name: found for name in self.parked if (found := setup.wake_s(planned, name)) is not None}
            self.handle = ParkingGroup(group, self.parked, wake_s) if planned.parked else group
            self.failed.clear()
            self.met.set()
            await self.may_load.wait()
            async with self._changing:
                await self._take_up(group, _names(self.spec))
                self.state, self.expected_at = "serving", None
                self._start_took_s = time.monotonic() - began
            self.journal.note("group", self.name, "serving", models=sorted(self.ready), kind=group.kind)
            self._settled.set()
            self.on_change()
            again = asyncio.create_task(self._load_again(group), name=f"loads of {self.name}")
            try:
                return await lost
            finally:
                again.cancel()
                await asyncio.gather(again, return_exceptions=True)
        finally:
            self.ready.clear()
            self.proven.clear()
            self._asleep.clear()
            self.group = self.handle = None
            await to_its_end(group.stop(None if spec.foreign else GRACE_S))

    async def _take_up(self, group: Group, models: list[str]) -> None:
        """Load each and let it answer once; one that cannot be loaded leaves the others alone."""
        if self.foreign and isinstance(self.handle, ParkingGroup):
            await self.handle.rest()  # there is room for one
        for model in models:
            try:
                await group.load(self.experts.taken_up(self.setup.spec_of(self.spec, model)))
                await self._prove_first(group, model)
            except (InputError, RequestFailed) as error:
                self.failed[model] = str(error)
                self.journal.note("model", model, "not loaded", group=self.name, reason=str(error))
                continue
            self.proven[model] = time.monotonic()
            self.failed.pop(model, None)
            self.ready.add(model)
            if self.state == "serving":
                self.journal.note("model", model, "loaded", group=self.name)
                self.on_change()
        await self._rouse()

    async def _prove_first(self, group: Group, model: str) -> None:
        """A model that was loaded answers once, or goes again."""
        try:
            await probe(group, model, self.setup.probes[model])
            if model in self.parked:
                await group.suspend(model)
        except (InputError, RequestFailed):
            await group.unload(model)
            raise

    async def _load_again(self, group: Group) -> None:
        """What could not be loaded may be by now: files are mended, memory is free."""
        tries = 0
        with contextlib.suppress(GroupLost):
            while True:
                await asyncio.sleep(LOAD_AGAIN_S[min(tries, len(LOAD_AGAIN_S) - 1)])
                if not self.is_awake:
                    continue
                async with self._changing:
                    tries = tries + 1 if self.failed or self.experts.failed else 0
                    await self._take_up(group, list(self.failed))
                    if self.experts.failed:
                        await self._bring_experts(group)

    async def _bring_experts(self, group: Group) -> str:
        """To where the plan wishes them, of models that serve; what went wrong, or nothing."""
        try:
            specs = [self.setup.spec_of(self.spec, model) for model in self.spec.experts if model in self.ready]
        except InputError as error:  # a file that was there when the plan was checked
            return str(error)
        return await self.experts.bring(group, specs)

    async def _give_up(self, group: Group, models: list[str], empty: Empty) -> None:
        for model in models:
            self.failed.pop(model, None)
            if model in self.ready:
                self.ready.discard(model)
                self.on_change()
                await empty(model)
                await group.unload(model)
                self.experts.given_up(model)
                self.journal.note("model", model, "unloaded", group=self.name)


def _names(spec: PlannedGroup) -> list[str]:
    return [*spec.models, *spec.parked]


def _is_reloaded(old: PlannedGroup, new: PlannedGroup, model: str) -> bool:
    """Experts that are placed can be moved while they serve; back to slices they go by loading alone."""
    return _held(old, model) != _held(new, model) or (model in old.experts and model not in new.experts)


def _held(spec: PlannedGroup, model: str) -> tuple[bool, bool, int]:
    """How a group holds a model: as served, as parked, with how much cache."""
    return model in spec.models, model in spec.parked, spec.kv_bytes.get(model, 0)
