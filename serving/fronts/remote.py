"""The router as a front end sees it: asks the desk of the process that routes, and hands on what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from placement.errors import InputError
from router.request import NotServed, Request
from router.statistics import Statistics
from serving.engine.outputs import Answered, Produced
from serving.fronts.messages import Ask, Came, Close, No, ToDesk, ToFront
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
        self._open: dict[str, asyncio.Queue[Come]] = {}

    def submit(self, request: Request, run: Callable[[Any], AsyncIterator[T]]) -> RemoteStream[T]:
        return RemoteStream(self, request, run)

    def take(self, link: Link[ToDesk, ToFront], message: ToFront) -> None:
        """What the desk says."""
        for one in message.outputs if isinstance(message, Came) else [message]:
            stream = self._open.get(one.request)
            if stream is not None:
                stream.put_nowait(one)

    def ask(self, request: Request, work: Generate | Infer) -> asyncio.Queue[Come]:
        stream = self._open[request.id] = asyncio.Queue()
        self._send(
            Ask(
                work=work,
                tokens=request.tokens,
                inputs=request.inputs,
                max_tokens=request.max_tokens,
                answers=request.answers,
                slo_s=request.slo_s,
                tpot_s=request.tpot_s,
                tenant=request.tenant,
                priority=request.priority,
            )
        )
        return stream

    def complete(self, request: Request) -> None:
        """All has come; the desk knows that too."""
        self._open.pop(request.id, None)

    def end(self, request: Request, answered: bool) -> None:
        """Before all has come: the desk forgets it too."""
        if self._open.pop(request.id, None) is not None:
            self._send(Close(request.id, answered))

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
        self._router.end(self._request, answered=True)

    async def _end(self, answered: bool) -> None:
        self._router.end(self._request, answered)
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
        stream = self._router.ask(self._request, Generate(request, model, prompt, params))
        unfinished = params.n
        while unfinished:
            came = await stream.get()
            if isinstance(came, No):
                self._router.complete(self._request)
                raise _error(came)
            assert isinstance(came, Produced)
            unfinished -= came.finish is not None
            if not unfinished:
                self._router.complete(self._request)
            yield came

    async def infer(
        self, request: str, model: str, inputs: list[list[int]], kinds: list[list[int]] | None = None
    ) -> NDArray[np.float32]:
        came = await self._router.ask(self._request, Infer(request, model, inputs, kinds)).get()
        self._router.complete(self._request)
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
