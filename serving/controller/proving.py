"""Looks whether groups work that nobody asks: a worker may hang though its links are alive.

Most often a group is only asked to echo, which costs nothing; a pass of each model, which may keep a request waiting,
is rare.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass

from serving.controller.probe import probe
from serving.controller.runner import GroupRunner
from serving.worker.group import Group, GroupLost, RequestFailed


@dataclass(frozen=True)
class Proving:
    every_s: float = 5.0
    """How often groups are looked at; one of which nothing was heard for so long must echo."""
    renew_s: float = 20.0
    """How often each model must show that it works, by an answer to whomever."""
    patience_s: float = 20.0
    """A group that leaves a question unanswered so long is ended."""

    def due(self, proven: Mapping[str, float], now: float) -> list[str]:
        """Of a group's models, by when each last showed that it works: who shall do so now, longest ago first; no more
        than must be so that all have their turn."""
        late = [model for model, at in proven.items() if at <= now - self.renew_s]
        return sorted(late, key=proven.__getitem__)[: math.ceil(len(proven) * self.every_s / self.renew_s)]

    async def prove(self, runner: GroupRunner) -> None:
        """Ask a group what it has not shown by itself; one that does not answer is ended."""
        group, now = runner.group, time.monotonic()
        if group is None or not runner.is_awake:
            return
        for model in runner.provable & group.heard.keys():
            runner.proven[model] = max(runner.proven.get(model, 0.0), group.heard[model])
        proven = {model: runner.proven.get(model, 0.0) for model in runner.provable}
        due = self.due(proven, now)
        for model in due:
            if model in runner.provable and not await self._works(runner, group, model):
                return
        if proven and not due and max(proven.values()) <= now - self.every_s:
            if runner.foreign:  # an echo of its leader would say nothing of the engine
                await self._works(runner, group, min(proven, key=proven.__getitem__))
            else:
                await self._answers(runner, group, group.echo(), "it")

    async def _works(self, runner: GroupRunner, group: Group, model: str) -> bool:
        question = probe(group, model, runner.setup.probes[model])
        try:
            if not await self._answers(runner, group, question, repr(model)):
                return False
        except RequestFailed as error:
            if model in runner.provable and runner.is_awake:  # else it was given up, or put to sleep, meanwhile
                group.give_up(f"group {runner.name}: {model!r} fails a probe: {error}")
                return False
        else:
            runner.proven[model] = time.monotonic()
        return True

    async def _answers(self, runner: GroupRunner, group: Group, question: Awaitable[None], who: str) -> bool:
        try:
            async with asyncio.timeout(self.patience_s):
                await question
        except TimeoutError:
            if runner.is_awake:  # else the question waits at the gate
                group.give_up(f"group {runner.name}: {who} did not answer a probe within {self.patience_s:g} s")
            return False
        except GroupLost:
            return False
        return runner.is_awake
