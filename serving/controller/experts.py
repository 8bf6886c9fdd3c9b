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
from collections import Counter
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
from serving.config import ExpertsConfig
from serving.controller.controller import Controller
from serving.controller.expert_files import ExpertModel, Places
from serving.controller.expert_popularity import ExpertPopularity
from serving.controller.group_experts import Placed
from serving.controller.runner import GroupRunner
from serving.controller.steady import steadily
from serving.worker.group import GroupLost

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
    """[layers]: of the choices seen, on the placement they were served with."""
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
        for counts in await asyncio.gather(*(self._routes(runner, model) for runner in runners)):
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

    async def _routes(self, runner: GroupRunner, model: str) -> Floats | None:
        try:
            assert runner.group is not None
            return np.array(await runner.group.take_routes(model), np.float64)
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
        task = Task(recent.load(), _pool(held.planned), recent.history(), ExpertPlacement.of_lists(held.now))
        loop = asyncio.get_running_loop()
        seen = await loop.run_in_executor(self._decider, _see, task, self._terms(runner, model), popularity.last)
        self.seen[where] = seen
        rests = time.monotonic() < self._rest_until.get(where, 0.0)
        if seen.decision.changes and self.settings.mode == "apply" and not rests:
            await self._move(runner, where, held, seen.decision)

    async def _move(self, runner: GroupRunner, where: Where, held: Placed, decision: Decision) -> None:
        try:
            read = await runner.move_experts(where.model, held, decision.placement.lists())
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

    def _terms(self, runner: GroupRunner, model: str) -> Terms:
        cluster = self._controller.problem.cluster
        nodes = {cluster.devices[cluster.device_index[name]].node for name in runner.spec.devices}
        return Terms(
            expert_bytes=self._models[model].expert_bytes,
            bytes_per_s=min(cluster.nodes[node].load_bandwidth for node in nodes),
            hold_s=float(self.settings.hold),
        )

    def _note_reason(self, where: Where, what: str, reason: str) -> None:
        """Once for each reason: looks are many."""
        if self.reasons.get(where) != reason:
            self.reasons[where] = reason
            self._controller.journal.note("model", where.model, what, group=where.group, reason=reason)

    def _forget(self, there: set[Where]) -> None:
        """Groups come and go under new names for as long as a server runs."""
        for kept in (self.seen, self.reasons, self.moves, self.moved_bytes, self.failures, self._rest_until):
            for where in [where for where in kept if where not in there]:
                del kept[where]


def warm_up() -> None:
    """Compile what deciding calls, or read it from the disk."""
    load = np.ones((1, 2))
    _see(Task(load, Pool.even(2, 3), load[None], ExpertPlacement.of_lists([[[0], [1]]])), Terms(1), load)


def _see(task: Task, terms: Terms, last: Floats) -> Seen:
    """`last`: choices [layers, experts] that were served on the previous placement."""
    present, speed = task.previous_here, task.pool.speed
    assert present is not None
    balance = balancedness(last, Splitter(present, speed).levels(last), speed)
    return Seen(balance, decide(task, terms))


def _pool(planned: Places) -> Pool:
    """As many experts of a layer on each device as the plan has put there in any layer: so many there is room for."""
    slots = np.array([[len(held) for held in layer] for layer in planned]).max(axis=0)
    return Pool(np.ones(len(slots)), slots.astype(np.int64), np.zeros(len(slots), np.int64))


def _step_back() -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + DECIDER_NICE)
