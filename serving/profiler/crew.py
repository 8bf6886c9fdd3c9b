"""The measuring processes, as the profiler sees them: one for each device, started together, each doing one thing at a
time. None outlives the crew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from placement.errors import InputError
from serving.profiler.messages import (
    PATIENT,
    Failed,
    Join,
    Leave,
    MeasureOrder,
    MeasurerDocument,
    MeasureReport,
    Ready,
)
from serving.worker.launcher import Handle, Launcher, WorkerSpec
from serving.worker.link import Link
from serving.worker.listener import listen
from serving.worker.scratch import Scratch

T = TypeVar("T")
START_S = 120.0
ORDER_S = 1800.0
"""The longest that one order may take."""
LEAVE_S = 2.0


class MeasuringFailed(RuntimeError):  # noqa: N818  (it says what happened)
    """A measuring process could not go on; the one line says why."""


class Measuring:
    """One measuring process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.link: Link[MeasureOrder, MeasureReport] | None = None
        self.is_ready = asyncio.Event()
        self._answer: asyncio.Future[MeasureReport] | None = None
        self._lost: str | None = None

    async def ask(self, order: MeasureOrder) -> MeasureReport:
        assert self.link is not None
        assert self._answer is None or self._answer.done()
        self.check()
        self.link.send(order)
        self._answer = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(ORDER_S):
            report = await self._answer
        if isinstance(report, Failed):
            raise InputError(report.reason) if report.is_input else MeasuringFailed(report.reason)
        return report

    def check(self) -> None:
        if self._lost is not None:
            raise MeasuringFailed(self._lost)

    def take(self, report: MeasureReport) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(report)

    def lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self.is_ready.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(MeasuringFailed(reason))


class Crew:
    """Made by `start_crew`."""

    def __init__(self, directory: Path, members: list[Measuring]) -> None:
        self.members = members
        self._directory = directory
        self._joined: set[tuple[int, int]] = set()

    def teams(self, tp: int) -> list[list[Measuring]]:
        """As many teams of `tp` neighbours as there are."""
        return [self.members[first : first + tp] for first in range(0, len(self.members) - tp + 1, tp)]

    async def join(self, team: list[Measuring]) -> None:
        """Let the devices of a team meet, once."""
        key = (len(team), team[0].number)
        if len(team) == 1 or key in self._joined:
            return
        self._joined.add(key)
        meeting = self._directory / f"{key[0]}-{key[1]}"
        meeting.mkdir(mode=0o700)
        await ask_all((one, Join(len(team), rank, str(meeting))) for rank, one in enumerate(team))


async def ask_all(orders: Iterable[tuple[Measuring, MeasureOrder]]) -> list[MeasureReport]:
    return await all_of(one.ask(order) for one, order in orders)


async def all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All at once; the first that fails ends it for all."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


@contextlib.asynccontextmanager
async def start_crew(devices: list[str], launcher: Launcher) -> AsyncIterator[Crew]:
    """A process on each device (cpu:N or cuda:N); all are gone when the block is left."""
    members = [Measuring(number) for number in range(len(devices))]
    by_link: dict[Link[MeasureOrder, MeasureReport], Measuring] = {}

    def take(link: Link[MeasureOrder, MeasureReport], report: MeasureReport) -> None:
        if isinstance(report, Ready):
            one = by_link[link] = members[report.number]
            one.link = link
            one.is_ready.set()
        else:
            by_link[link].take(report)

    handles: list[Handle] = []
    with Scratch() as folder:
        control = f"unix:{folder}/control"
        listener = await listen(control, MeasureReport, lambda _: None, take, lambda *_: None, settings=PATIENT)
        watchers: list[asyncio.Task[None]] = []
        try:
            for number, device in enumerate(devices):
                document = MeasurerDocument(number=number, device=device, control=control)
                spec = WorkerSpec(
                    name=f"measurer/{number}",
                    device=device,
                    module="serving.profiler",
                    document=msgspec.to_builtins(document),
                )
                handles.append(await launcher.start(spec))
                watchers.append(asyncio.create_task(_watch(handles[-1], members[number])))
            await _until_ready(members)
            yield Crew(folder, members)
        finally:
            for watcher in watchers:
                watcher.cancel()
            for one in members:
                if one.link is not None:
                    one.link.send(Leave())
            listener.close()
            await asyncio.gather(*(_end(handle) for handle in handles))


async def _until_ready(members: list[Measuring]) -> None:
    try:
        async with asyncio.timeout(START_S):
            for one in members:
                await one.is_ready.wait()
    except TimeoutError:
        raise MeasuringFailed(f"measuring processes were not ready within {START_S:g} s") from None
    for one in members:
        one.check()


async def _watch(handle: Handle, one: Measuring) -> None:
    ended = await handle.wait()
    one.lose(ended.reason)


async def _end(handle: Handle) -> None:
    try:
        await asyncio.wait_for(handle.wait(), LEAVE_S)
    except TimeoutError:
        await handle.terminate(0.0)
