"""Looks which experts are chosen, and moves them to where they are less waited for, when that pays.

What is chosen is one stream for a model, over all its groups; where experts are is each group's own. Deciding is
moe.decision's, on a thread of low priority; reading, checking and switching is the workers', beside their steps.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moe.arrays import Floats
from moe.decision import Decision, Terms, decide
from moe.expert_placement import ExpertPlacement
from moe.pool import Pool
from moe.replication import Task
from moe.split import Splitter, balancedness
from placement.errors import InputError
from placement.plan import replica_profile
from serving.config import ExpertsConfig
from serving.controller.controller import Controller
from serving.controller.expert_files import ExpertModel, Places, Room
from serving.controller.expert_popularity import ExpertPopularity
from serving.controller.expert_share import expert_share
from serving.controller.group_experts import Placed
from serving.controller.runner import GroupRunner
from serving.controller.steady import steadily
from serving.worker.group import GroupLost, RouteCounts

DECIDER_NICE = 10
REST_S = 300.0
"""After a move that failed: what was wrong is rarely mended at once, and each attempt reads weights."""


class Where(NamedTuple):
    """A model on a group."""

    group: str
    model: str


@dataclass(frozen=True)
class Seen:
    """What the last look found of a model on a group."""

    balance: Floats
    """[layers]: of the choices seen, on the placement they were served with; the mean over steps that were large enough
    to have been counted one by one, else of all steps together."""
    decision: Decision


class ExpertKeeper:
    """Of all groups of a controller; `models` by name."""

    def __init__(self, controller: Controller, models: Mapping[str, ExpertModel], settings: ExpertsConfig) -> None:
        self._controller, self._models = controller, models
        self.settings = settings
        self.popularity: dict[str, ExpertPopularity] = {}
        self.seen: dict[Where, Seen] = {}
        self.reasons: dict[Where, str] = {}
        """Why the last look at a model on a group, or the last move, came to nothing."""
        self.moves: Counter[Where] = Counter()
        self.moved_bytes: Counter[Where] = Counter()
        self.failures: Counter[Where] = Counter()
        self._rest_until: dict[Where, float] = {}
        self._moving: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By group: models that share devices take their memory one after the other."""
        self._decider = ThreadPoolExecutor(1, "expert decisions", _step_back)

    async def run(self) -> None:
        """For ever, or not at all."""
        if self.settings.mode != "off":
            await steadily(float(self.settings.every), self.look, self._controller.journal, "experts")

    def places(self) -> list[Where]:
        """Where the plan has placed experts."""
        runners = self._controller.runners.values()
        return [Where(runner.name, model) for runner in runners for model in runner.experts.placed]

    async def look(self) -> None:
        """At every model whose experts are placed somewhere."""
        self._forget(set(self.places()))
        holders: dict[str, list[GroupRunner]] = {}
        for runner in self._controller.runners.values():
            for model in runner.experts.placed:
                if model in runner.ready and runner.group is not None:
                    holders.setdefault(model, []).append(runner)
        await asyncio.gather(*(self._look_at(model, runners) for model, runners in holders.items()))

    async def _look_at(self, model: str, runners: list[GroupRunner]) -> None:
        is_new = model not in self.popularity
        if is_new:
            self.popularity[model] = await self._begin(model)
        popularity = self.popularity[model]
        for counts in await asyncio.gather(*(self._counts(runner, model) for runner in runners)):
            if counts is not None:
                popularity.add(counts)
        if popularity.learn() or (is_new and popularity.last is not None):
            await asyncio.gather(*(self._decide(runner, model, popularity) for runner in runners))

    async def _begin(self, model: str) -> ExpertPopularity:
        """With what lies beside the model's weights, if anything."""
        known = self._models[model]
        popularity = ExpertPopularity(known.layers, known.sizes.experts, known.sizes.top_k, self.settings.tokens)
        try:
            profile = await asyncio.to_thread(known.profile)
            if profile is not None and profile.tokens:
                popularity.begin_with(profile)
        except InputError as error:
            self._controller.journal.note("model", model, "profile of experts not used", reason=str(error))
        return popularity

    async def _counts(self, runner: GroupRunner, model: str) -> RouteCounts | None:
        try:
            assert runner.group is not None
            return await runner.group.take_routes(model)
        except GroupLost:
            return None  # it comes up again
        except InputError as error:
            self._note_reason(Where(runner.name, model), "routes not counted", str(error))
            return None

    async def _decide(self, runner: GroupRunner, model: str, popularity: ExpertPopularity) -> None:
        held = runner.experts.placed.get(model)
        if held is None:
            return
        where, recent = Where(runner.name, model), popularity.recent
        assert popularity.last is not None
        served = popularity.last_steps if len(popularity.last_steps) else popularity.last[None]
        pool = _pool(self._room(runner).slots(model, held.planned, _now(runner)))
        task = Task(recent.load(), pool, recent.history(), ExpertPlacement.of_lists(held.now))
        loop = asyncio.get_running_loop()
        seen = await loop.run_in_executor(self._decider, _see, task, self._terms(runner, model), served)
        self.seen[where] = seen
        rests = time.monotonic() < self._rest_until.get(where, 0.0)
        if seen.decision.changes and self.settings.mode == "apply" and not rests:
            await self._move(runner, where, held, seen.decision)

    async def _move(self, runner: GroupRunner, where: Where, held: Placed, decision: Decision) -> None:
        places = decision.placement.lists()
        try:
            async with self._moving[where.group]:
                self._room(runner).check(_now(runner) | {where.model: places}, f"group {where.group}")
                read = await runner.move_experts(where.model, held, places)
        except GroupLost:
            return
        except InputError as error:
            self.failures[where] += 1
            self._rest_until[where] = time.monotonic() + REST_S
            self._note_reason(where, "experts not moved", str(error))
            return
        self.reasons.pop(where, None)
        self.moves[where] += 1
        self.moved_bytes[where] += read * self._models[where.model].expert_bytes
        self._controller.journal.note(
            *("model", where.model, "experts moved"),
            group=where.group,
            read=read,
            balancedness=round(1 / decision.expected_before, 3),
            becomes=round(1 / decision.expected_after, 3),
        )

    def _room(self, runner: GroupRunner) -> Room:
        return Room(runner.spec, self._controller.problem, self._models)

    def _terms(self, runner: GroupRunner, model: str) -> Terms:
        cluster = self._controller.problem.cluster
        nodes = {cluster.devices[cluster.device_index[name]].node for name in runner.spec.devices}
        return Terms(
            expert_bytes=self._models[model].expert_bytes,
            bytes_per_s=min(cluster.nodes[node].load_bandwidth for node in nodes),
            hold_s=float(self.settings.hold),
            expert_share=expert_share(
                self._models[model].sizes, replica_profile(runner.spec, model, self._controller.problem)
            ),
        )

    def _note_reason(self, where: Where, what: str, reason: str) -> None:
        """Once for each reason: looks are many."""
        if self.reasons.get(where) != reason:
            self.reasons[where] = reason
            self._controller.journal.note("model", where.model, what, group=where.group, reason=reason)

    def _forget(self, there: set[Where]) -> None:
        """Groups come and go under new names for as long as a server runs."""
        for group in self._moving.keys() - {where.group for where in there}:
            del self._moving[group]
        for kept in (self.seen, self.reasons, self.moves, self.moved_bytes, self.failures, self._rest_until):
            for where in [where for where in kept if where not in there]:
                del kept[where]


def warm_up() -> None:
    """Compile what deciding calls, or read it from the disk."""
    load = np.ones((1, 2))
    _see(Task(load, Pool.even(2, 3), load[None], ExpertPlacement.of_lists([[[0], [1]]])), Terms(1), load[None])


def _see(task: Task, terms: Terms, served: Floats) -> Seen:
    """`served`: choices [steps, layers, experts] that were served on the previous placement."""
    present, speed = task.previous_here, task.pool.speed
    assert present is not None
    splitter = Splitter(present, speed)
    balance = np.mean([balancedness(step, splitter.levels(step), speed) for step in served], axis=0)
    return Seen(balance, decide(task, terms))


def _now(runner: GroupRunner) -> dict[str, Places]:
    return {model: held.now for model, held in runner.experts.placed.items()}


def _pool(slots: list[int]) -> Pool:
    return Pool(np.ones(len(slots)), np.array(slots, np.int64), np.zeros(len(slots), np.int64))


def _step_back() -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + DECIDER_NICE)
