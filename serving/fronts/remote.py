"""The router as a front end sees it: asks the desk of the process that routes, and hands on what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from placement.errors import InputError
from router.request import NotServed, Request
from router.statistics import Statistics
from serving.engine.outputs import Answered, Produced
from serving.fronts.messages import Ask, Begin, Body, Came, Close, Next, No, Pass, ToDesk, ToFront
from serving.fronts.passing import cut
from serving.http.service import Runs
from serving.sampling import SamplingParams
from serving.worker.group import GroupLost, RequestFailed
from serving.worker.link import Link
from serving.worker.messages import Generate, Infer

T = TypeVar("T")
Come = Produced | Answered | No


class RemoteRouter:
    """In the place of a Router. Whether a request is admitted is known when its stream is first looked at."""

    def __init__(self) -> None:
        self.statistics = Statistics()
        """Of nothing: who was in time is counted where the router is."""
        self.link: Link[ToDesk, ToFront] | None = None
        self._open: dict[str, Callable[[Any], None]] = {}
        """By request, who takes what comes of it."""

    def submit(self, request: Request, run: Callable[[Any], AsyncIterator[T]]) -> RemoteStream[T]:
        return RemoteStream(self, request, run)

    def take(self, link: Link[ToDesk, ToFront], message: ToFront) -> None:
        """What the desk says."""
        all_of_it: Iterable[Come | Begin | Body] = message.outputs if isinstance(message, Came) else (message,)
        for one in all_of_it:
            take = self._open.get(one.request)
            if take is not None:
                take(one)

    def ask(self, request: Request, work: Generate | Infer, take: Callable[[Come], None]) -> None:
        self._send(Ask(replace(request, prompt=()) if request.prompt else request, work))
        self._open[request.id] = take

    def pass_on(self, asked: Pass, body: bytes, take: Callable[[Begin | Body], None]) -> None:
        """An exchange that is the desk's to answer."""
        self._send(asked)
        for part, is_last in cut(body):
            self._send(Body(asked.request, part, is_last))
        self._open[asked.request] = take

    def took(self, request: str) -> None:
        """The client has a part of what was passed on, and there is more."""
        self._send(Next(request))

    def complete(self, request: str) -> None:
        """All has come; the desk knows that too."""
        self._open.pop(request, None)

    def end(self, request: str, answered: bool) -> None:
        """Before all has come: the desk forgets it too."""
        if self._open.pop(request, None) is not None:
            self._send(Close(request, answered))

    def _send(self, message: ToDesk) -> None:
        if self.link is None or not self.link.send(message):
            raise NotServed("failed", "the process that routes requests is gone")


class RemoteStream(AsyncIterator[T], Generic[T]):
    def __init__(self, router: RemoteRouter, request: Request, run: Callable[[Any], AsyncIterator[T]]) -> None:
        self._router, self._request = router, request
        self._source = run(_RemoteRuns(router, request)).__aiter__()

    def __aiter__(self) -> RemoteStream[T]:
        return self

    async def __anext__(self) -> T:
        return await self._source.__anext__()

    async def aclose(self) -> None:
        await self._end(answered=False)

    async def finish(self) -> None:
        await self._end(answered=True)

    def suffice(self) -> None:
        self._router.end(self._request.id, answered=True)

    async def _end(self, answered: bool) -> None:
        self._router.end(self._request.id, answered)
        close: Any = getattr(self._source, "aclose", None)
        if close is not None:
            await close()


class _RemoteRuns(Runs):
    """A group, whichever it will be."""

    def __init__(self, router: RemoteRouter, request: Request) -> None:
        self._router, self._request = router, request

    async def generate(
        self, request: str, model: str, prompt: list[int], params: SamplingParams
    ) -> AsyncIterator[Produced]:
        stream: asyncio.Queue[Come] = asyncio.Queue()
        self._router.ask(self._request, Generate(request, model, prompt, params), stream.put_nowait)
        unfinished = params.n
        while unfinished:
            came = await stream.get()
            if isinstance(came, No):
                self._router.complete(request)
                raise _error(came)
            assert isinstance(came, Produced)
            unfinished -= came.finish is not None
            if not unfinished:
                self._router.complete(request)
            yield came

    async def infer(
        self, request: str, model: str, inputs: list[list[int]], kinds: list[list[int]] | None = None
    ) -> NDArray[np.float32]:
        answer: asyncio.Future[Come] = asyncio.get_running_loop().create_future()

        def take(came: Come) -> None:
            if not answer.done():  # whoever waited may just have been cancelled
                answer.set_result(came)

        self._router.ask(self._request, Infer(request, model, inputs, kinds), take)
        came = await answer
        self._router.complete(request)
        if isinstance(came, No):
            raise _error(came)
        assert isinstance(came, Answered)
        return np.frombuffer(came.values, np.float32).reshape(came.inputs, -1)


def _error(no: No) -> Exception:
    match no.kind:
        case "not-served":
            return NotServed(no.code, no.message, no.retry_after_s)  # type: ignore[arg-type]
        case "failed":
            return RequestFailed(no.code, no.message)
        case "lost":
            return GroupLost(no.message)
        case "input":
            return InputError(no.message)
    return RuntimeError(no.message)
