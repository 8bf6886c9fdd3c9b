"""Tells whoever looks: everything kept at first, then what is so every second. One encoding for all of them; one that
does not keep up begins anew.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import msgspec

from serving.dashboard.recorder import Recorder
from serving.dashboard.source import Plain, Source
from serving.http.call import Call
from serving.http.errors import Unavailable
from serving.http.logs import get_log

EVERY_S = 1.0
JOBS_EVERY_S = 2.0
MOST_VIEWERS = 32
LONGEST_S = 500.0
"""Then a viewer is let go, and comes back: the endpoint ends what takes longer than ten minutes."""
KEPT = 30
"""Frames that a slow viewer may be behind."""
_log = get_log("dashboard")


class Viewers:
    def __init__(self, recorder: Recorder, source: Source) -> None:
        self._recorder, self._source = recorder, source
        self._encode = msgspec.json.Encoder().encode
        self._frames: deque[bytes] = deque(maxlen=KEPT)
        self._count = 0
        """Frames made so far."""
        self._news = asyncio.Event()
        self._open = 0
        self._is_closed = False
        self._jobs: list[Plain] = []
        self._jobs_at = 0.0
        self._trouble = ""

    async def run(self) -> None:
        """For ever; what goes wrong is told once, and the next second tried again."""
        while True:
            began = time.monotonic()
            try:
                await self._tick()
                self._trouble = ""
            except Exception as error:
                trouble = f"{type(error).__name__}: {error}"
                if trouble != self._trouble:
                    _log.error("not shown", reason=trouble)
                self._trouble = trouble
            await asyncio.sleep(max(EVERY_S - (time.monotonic() - began), 0.1))

    def close(self) -> None:
        """Let all go: the server stops."""
        self._is_closed = True
        self._wake()

    async def snapshot(self, call: Call) -> None:
        """What is so and what happened, once; the models' past figures come with the stream alone."""
        told = await self._all()
        del told["bins"]
        await call.answer(self._encode(told))

    async def stream(self, call: Call) -> None:
        await call.body()  # a client that goes is seen from here on
        if self._is_closed or self._open >= MOST_VIEWERS:
            raise Unavailable("too many look at the dashboard, or it stops", code="busy", retry_after_s=5)
        self._open += 1
        try:
            await self._follow(call)
        finally:
            self._open -= 1

    async def _follow(self, call: Call) -> None:
        until = time.monotonic() + LONGEST_S
        first, seen = self._encode(await self._all()), self._count
        await call.start_stream()
        await call.write(_event(b"history", first))
        while time.monotonic() < until and not self._is_closed:
            await self._news.wait()
            behind = self._count - seen
            if behind > len(self._frames):
                break
            seen = self._count
            if behind:
                await call.write(b"".join(list(self._frames)[-behind:]))
        await call.end()

    async def _all(self) -> Plain:
        await self._look_at_jobs()
        return self._recorder.history() | {"now": self._view()}

    async def _tick(self) -> None:
        news = self._recorder.tick()
        if not self._open:
            return
        await self._look_at_jobs()
        self._frames.append(_event(b"now", self._encode(news | {"now": self._view()})))
        self._count += 1
        self._wake()

    def _view(self) -> Plain:
        return self._recorder.view() | {"jobs": self._jobs}

    async def _look_at_jobs(self) -> None:
        if time.monotonic() - self._jobs_at > JOBS_EVERY_S:
            self._jobs_at = time.monotonic()
            self._jobs = await self._source.jobs()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"
