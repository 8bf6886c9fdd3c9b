"""What is being done to jobs now: one thing at a time to each, whoever begins it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE_S = 1.0
"""After something went wrong with the queue itself."""


class Works:
    """`on_end` is called behind each; `on_failure` is told of those that nobody waits for."""

    def __init__(self, on_end: Callable[[], None], on_failure: Callable[[str, BaseException], None]) -> None:
        self._on_end, self._on_failure = on_end, on_failure
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._last: dict[str, int] = {}
        self.ended = 0
        """How many have come to their end."""

    def __contains__(self, job: str) -> bool:
        return job in self._tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __getitem__(self, job: str) -> asyncio.Task[Any]:
        return self._tasks[job]

    async def all_over(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def do(self, job: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """To be waited for."""
        assert job not in self._tasks
        self._tasks[job] = task = asyncio.create_task(work, name=f"training job {job}")

        def over(task: asyncio.Task[T]) -> None:
            del self._tasks[job]
            self.ended += 1
            self._last[job] = self.ended
            self._on_end()

        task.add_done_callback(over)
        return task

    def begin(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        """Nobody waits for it."""

        def over(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._on_failure(job, error)

        self.do(job, work).add_done_callback(over)

    def is_fresh(self, job: str, ended: int) -> bool:
        """Whether nothing has been done to the job since so many works had ended: what was read of it then holds."""
        return job not in self._tasks and self._last.get(job, 0) <= ended

    def forget(self, jobs: Iterable[str]) -> None:
        for job in jobs:
            self._last.pop(job, None)


async def or_pause(work: Coroutine[Any, Any, None]) -> None:
    """What fails is begun again as soon as it is over: that is not at once."""
    try:
        await work
    except Exception:
        await asyncio.sleep(PAUSE_S)
        raise
