"""Where the process that routes takes the requests of its front ends: submits each, and sends back what comes of it.

A front end that is gone takes its own requests along, and no others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from placement.errors import InputError
from router.request import NotServed, Request
from serving.engine.outputs import Answered, Produced
from serving.fronts.counts import add_counts, take_counts
from serving.fronts.messages import Ask, Came, Close, Counts, No, NoKind, ToDesk, ToFront
from serving.http.meters import Meters, ModelMeters, clock
from serving.http.service import Runs, Stream, Submits
from serving.worker.group import GroupLost, RequestFailed
from serving.worker.link import Link
from serving.worker.listener import Listener, listen
from serving.worker.messages import Generate
from serving.worker.settings import LinkSettings

FrontLink = Link[ToFront, ToDesk]
SETTINGS = LinkSettings(life_s=10.0, ping_s=1.0)
"""A front end that dies closes its link at once; a busy one must not be taken for dead."""

_log = logging.getLogger(__name__)


class Desk:
    """`meters`: where those who wait and those who run are counted."""

    def __init__(self, router: Submits, meters: Meters) -> None:
        self._router, self._meters = router, meters
        self._open: dict[FrontLink, dict[str, _Errand]] = {}
        self._counts: dict[FrontLink, Counts] = {}
        self._gone: list[Counts] = []
        self._listener: Listener[ToFront, ToDesk] | None = None

    @property
    def fronts(self) -> int:
        return len(self._open)

    def counts(self) -> list[Counts]:
        """What all front ends have counted, as of a moment ago; what those counted that are gone stays."""
        return [*self._gone, *self._counts.values()]

    async def open(self, address: str) -> None:
        self._listener = await listen(address, ToDesk, self._welcome, self._take, self._lose, settings=SETTINGS)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for link in list(self._open):
            link.close("the server stops")

    def _welcome(self, link: FrontLink) -> None:
        self._open[link] = {}

    def _take(self, link: FrontLink, message: ToDesk) -> None:
        match message:
            case Ask(work=work):
                errand = _Errand(link, message, self._router, self._meters.models.get(work.model))
                self._open[link][work.request] = errand
                errand.task.add_done_callback(lambda _: self._open.get(link, {}).pop(work.request, None))
            case Close(request, answered):
                found = self._open[link].get(request)
                if found is not None:
                    found.close(answered)
            case Counts():
                self._counts[link] = message

    def _lose(self, link: FrontLink, reason: str) -> None:
        for errand in self._open.pop(link, {}).values():
            errand.close(answered=False)
        counts = self._counts.pop(link, None)
        if counts is not None:
            self._gone = [_sum(self._gone, counts)]


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
        ask, work = self._ask, self._ask.work
        meters = self._meters
        request = Request(
            id=work.request,
            model=work.model,
            tokens=ask.tokens,
            inputs=ask.inputs,
            max_tokens=ask.max_tokens,
            answers=ask.answers,
            prompt=work.prompt if isinstance(work, Generate) else (),
            slo_s=ask.slo_s,
            tpot_s=ask.tpot_s,
            tenant=ask.tenant,
            priority=ask.priority,
        )
        if meters is not None:
            meters.waiting += 1
        try:
            self._stream = self._router.submit(request, self._run)
            async for output in self._stream:
                self._link.send(Came([output]))
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

    def _run(self, group: Runs) -> AsyncIterator[Produced | Answered]:
        work, meters = self._ask.work, self._meters
        if meters is not None and not self._runs:
            meters.queue_time.observe(clock() - self._began)
            meters.waiting, meters.running = meters.waiting - 1, meters.running + 1
        self._runs = True
        if isinstance(work, Generate):
            return group.generate(work.request, work.model, work.prompt, work.params)
        return self._infer(group)

    async def _infer(self, group: Runs) -> AsyncIterator[Produced | Answered]:
        work = self._ask.work
        assert not isinstance(work, Generate)
        values = await group.infer(work.request, work.model, work.inputs, work.kinds)
        yield Answered(work.request, len(values), values.tobytes())

    def _no(self, kind: NoKind, code: str, error: Exception, retry_after_s: float | None = None) -> None:
        self._link.send(No(self._ask.work.request, kind, code, str(error), retry_after_s))


def _sum(gone: list[Counts], counts: Counts) -> Counts:
    total = Meters({name for each in (*gone, counts) for name in each.models})
    add_counts(total, [*gone, counts])
    total.open = 0  # what was open there is not any more
    return take_counts(total)
