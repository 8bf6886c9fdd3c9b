"""Where the process that routes takes the requests of its front ends: submits each, and sends back what comes of it.

A front end that is gone takes its own requests along, and no others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol

from msgspec.structs import replace
from starlette.types import ASGIApp

from placement.errors import InputError
from router.request import NotServed
from serving.engine.outputs import Answered, Produced
from serving.fronts.counts import add_counts, take_counts
from serving.fronts.messages import (
    Ask,
    Body,
    Came,
    Close,
    Counts,
    Join,
    Next,
    No,
    NoKind,
    Pass,
    ToDesk,
    ToFront,
)
from serving.fronts.passing import Passing
from serving.http.meters import Meters, ModelMeters, clock
from serving.http.service import Runs, Stream, Submits
from serving.worker.group import GroupLost, RequestFailed
from serving.worker.link import Link
from serving.worker.listener import Listener, listen
from serving.worker.messages import Generate, Infer
from serving.worker.settings import LinkSettings

FrontLink = Link[ToFront, ToDesk]
SETTINGS = LinkSettings(life_s=10.0, ping_s=1.0)
"""A front end that dies closes its link at once; a busy one must not be taken for dead."""

RETRY_S = 1.0
"""When to ask again where a server stops: another may take its place."""

_log = logging.getLogger(__name__)


class Desk:
    """`meters`: where those who wait and those who run are counted. `app` answers what front ends pass on."""

    def __init__(self, router: Submits, meters: Meters, app: ASGIApp, version: str) -> None:
        self._router, self._meters, self._app, self._version = router, meters, app, version
        self._open: dict[FrontLink, dict[str, _Errand | Passing]] = {}
        self._counts: dict[FrontLink, Counts] = {}
        self._gone: list[Counts] = []
        self._listeners: list[Listener[ToFront, ToDesk]] = []
        self._is_stopping = False

    @property
    def fronts(self) -> int:
        return len(self._open)

    def counts(self) -> list[Counts]:
        """What all front ends have counted, as of a moment ago; what those counted that are gone stays."""
        return [*self._gone, *self._counts.values()]

    async def open(self, address: str, secret: bytes | None = None) -> str:
        """Take front ends at an address more; returns it, with the port that was chosen. On TCP, those who know the
        secret."""
        listener: Listener[ToFront, ToDesk] = await listen(
            address, ToDesk, lambda link: None, self._take, self._lose, secret=secret, settings=SETTINGS
        )
        self._listeners.append(listener)
        return listener.address

    async def stop(self, grace_s: float) -> None:
        """Take no more front ends and no more requests; those that are open get so long."""
        self._is_stopping = True
        for listener in self._listeners:
            listener.close()
        errands = [one.task for here in self._open.values() for one in here.values() if isinstance(one, _Errand)]
        if errands:
            await asyncio.wait(errands, timeout=grace_s)
        for link in list(self._open):
            link.close("the server stops")

    def _take(self, link: FrontLink, message: ToDesk) -> None:
        open_here = self._open.get(link)
        if open_here is None:
            self._welcome(link, message)
            return
        match message:
            case Ask(work=work) if self._is_stopping:
                link.send(No(work.request, "not-served", "failed", "the server is stopping", RETRY_S))
            case Ask(work=work):
                errand = _Errand(link, message, self._router, self._meters.models.get(work.model))
                self._keep(open_here, work.request, errand)
            case Pass(request):
                self._keep(open_here, request, Passing(link, message, self._app))
            case Close(request, answered):
                found = open_here.get(request)
                if found is not None:
                    found.close(answered)
            case Body(request) | Next(request):
                passing = open_here.get(request)
                if isinstance(passing, Passing):
                    passing.take(message)
            case Counts():
                self._counts[link] = message

    def _welcome(self, link: FrontLink, message: ToDesk) -> None:
        if not isinstance(message, Join):
            link.close("a front end must say what it is before anything else")
            return
        strange = [name for name in message.models if name not in self._meters.models]
        if message.version != self._version:
            link.close(f"the front end is of version {message.version}, the server of {self._version}; give both one")
        elif strange:
            link.close(f"the front end serves {', '.join(map(repr, strange))}, which the server does not know")
        else:
            self._open[link] = {}

    def _keep(self, open_here: dict[str, _Errand | Passing], request: str, one: _Errand | Passing) -> None:
        open_here[request] = one
        one.task.add_done_callback(lambda _: open_here.pop(request, None))

    def _lose(self, link: FrontLink, reason: str) -> None:
        for errand in self._open.pop(link, {}).values():
            errand.close(answered=False)
        counts = self._counts.pop(link, None)
        if counts is not None:
            self._gone = [_sum(self._gone, counts)]


class Answers(Runs, Protocol):
    """What the desk asks of a group; serving.worker.group.Group does it."""

    def answer(self, order: Infer) -> Coroutine[Any, Any, Answered]: ...


class _Errand:
    """One request of a front end, on its way."""

    def __init__(self, link: FrontLink, ask: Ask, router: Submits, meters: ModelMeters | None) -> None:
        self._link, self._ask, self._router, self._meters = link, ask, router, meters
        self._began = clock()
        self._runs = False
        self._stream: Stream[Produced | Answered] | None = None
        self.task = asyncio.create_task(self._go())

    def close(self, answered: bool) -> None:
        if answered and self._stream is not None:
            self._stream.suffice()
        self.task.cancel()

    async def _go(self) -> None:
        request, work = self._ask.request, self._ask.work
        meters = self._meters
        if isinstance(work, Generate):
            request = replace(request, prompt=work.prompt)
        if meters is not None:
            meters.waiting += 1
        try:
            self._stream = self._router.submit(request, self._run)
            async for output in self._stream:
                self._link.send(Came([output]))
                if isinstance(work, Infer):
                    break
        except NotServed as error:
            self._no("not-served", error.reason, error, error.retry_after_s)
        except RequestFailed as error:
            self._no("failed", error.code, error)
        except GroupLost as error:
            self._no("lost", "failed", error)
        except InputError as error:
            self._no("input", "invalid", error)
        except Exception as error:  # another process waits for an answer
            _log.exception("request %s of a front end failed", work.request)
            self._no("internal", "internal", error)
        finally:
            if meters is not None:
                if self._runs:
                    meters.running -= 1
                else:
                    meters.waiting -= 1
            if self._stream is not None:
                await self._stream.aclose()

    def _run(self, group: Answers) -> AsyncIterator[Produced | Answered]:
        work, meters = self._ask.work, self._meters
        if meters is not None and not self._runs:
            meters.queue_time.observe(clock() - self._began)
            meters.waiting, meters.running = meters.waiting - 1, meters.running + 1
        self._runs = True
        if isinstance(work, Generate):
            return group.generate(work.request, work.model, work.prompt, work.params)
        return _OneAnswer(group, work)

    def _no(self, kind: NoKind, code: str, error: Exception, retry_after_s: float | None = None) -> None:
        self._link.send(No(self._ask.work.request, kind, code, str(error), retry_after_s))


class _OneAnswer(AsyncIterator[Answered]):
    """The answer of a one-pass request as the group gives it. To be looked at once."""

    def __init__(self, group: Answers, work: Infer) -> None:
        self._group, self._work = group, work

    def __anext__(self) -> Coroutine[Any, Any, Answered]:
        return self._group.answer(self._work)


def _sum(gone: list[Counts], counts: Counts) -> Counts:
    total = Meters({name for each in (*gone, counts) for name in each.models})
    add_counts(total, [*gone, counts])
    total.open = 0  # what was open there is not any more
    return take_counts(total)
