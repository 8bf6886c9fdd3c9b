"""Models parked on a group: their weights wait in host memory, and one of them at a time is awake.

Stands where a Group stands: whoever asks for a parked model is made to wait until it is awake. The router reckons with
the time that takes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing

import numpy as np
from numpy.typing import NDArray

from serving.controller.to_its_end import to_its_end
from serving.engine.outputs import Produced
from serving.sampling import SamplingParams
from serving.worker.group import Group


class ParkingGroup:
    """A group, of which some models are parked. All of them are asleep at first."""

    def __init__(self, group: Group, parked: Collection[str], planned_s: Mapping[str, float] | None = None) -> None:
        self._group = group
        self._parked = frozenset(parked)
        self._awake: str | None = None
        self._open = 0
        """Requests of the one that is awake."""
        self._line: deque[object] = deque()
        """Who waits, in the order in which they came: that of the router."""
        self._changed = asyncio.Condition()
        self.wake_s = dict(planned_s or {})
        """What waking each took, the last time; before the first, what the plan reckons with."""

    @property
    def awake(self) -> str | None:
        return self._awake

    async def generate(
        self, request: str, model: str, prompt: list[int], params: SamplingParams
    ) -> AsyncGenerator[Produced, None]:
        is_parked = model in self._parked
        if is_parked:
            await self._wake(model)
        try:
            async with aclosing(self._group.generate(request, model, prompt, params)) as stream:
                async for produced in stream:
                    yield produced
        finally:
            if is_parked:
                await self._leave()

    async def infer(
        self, request: str, model: str, inputs: list[list[int]], kinds: list[list[int]] | None = None
    ) -> NDArray[np.float32]:
        if model not in self._parked:
            return await self._group.infer(request, model, inputs, kinds)
        await self._wake(model)
        try:
            return await self._group.infer(request, model, inputs, kinds)
        finally:
            await self._leave()

    @property
    def parked(self) -> frozenset[str]:
        return self._parked

    async def rouse(self, model: str) -> None:
        """Let a model be the one that is awake before anybody asks for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._open)
            if self._awake != model:
                await to_its_end(self._change(model))

    async def rest(self) -> None:
        """Let the one that is awake sleep too, once nobody asks it anything."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._open)
            if self._awake is not None:
                await to_its_end(self._group.suspend(self._awake))
                self._awake = None

    async def _wake(self, model: str) -> None:
        place = object()
        async with self._changed:
            self._line.append(place)
            try:
                await self._changed.wait_for(
                    lambda: self._line[0] is place and (self._awake == model or not self._open)
                )
                if self._awake != model:
                    # Of a change half made nobody would know which is awake.
                    await to_its_end(self._change(model))
                self._open += 1
            finally:
                self._line.remove(place)
                self._changed.notify_all()

    async def _change(self, model: str) -> None:
        if self._awake is not None:
            await self._group.suspend(self._awake)
            self._awake = None
        began = time.monotonic()
        await self._group.resume(model)
        self.wake_s[model] = time.monotonic() - began
        self._awake = model

    async def _leave(self) -> None:
        self._open -= 1
        async with self._changed:
            self._changed.notify_all()
