"""From prompts to pieces of text as they come: submits to the router, turns tokens into text, ends at stop strings, and
counts. Knows nothing of how an answer is written down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from router.request import NotServed, Request
from serving.engine.outputs import Produced
from serving.http.call import Call
from serving.http.errors import as_http
from serving.http.meters import Meters, Track
from serving.http.service import Runs, ServedModel, Service
from serving.http.wishes import Wishes
from serving.sampling import SamplingParams, TokenLogprobs
from serving.text import TextStream

_MOST_WAITING = 64


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One prompt and what is to be made of it."""

    model: ServedModel
    prompt: list[int]
    params: SamplingParams
    stops: Sequence[str] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    continues: bool = False
    """Whether the answer goes on in the middle of the prompt's text."""


@dataclass(slots=True)
class Piece:
    """What one token adds to answer `index`; with `finish`, the last of it."""

    index: int
    text: str
    token: int | None
    finish: Literal["stop", "length"] | None
    logprobs: TokenLogprobs | None
    cached: int


class Generation:
    def __init__(self, service: Service, meters: Meters) -> None:
        self._router, self._meters = service.router, meters

    def pieces(self, call: Call, asks: Sequence[Ask], wishes: Wishes) -> AsyncIterator[Piece]:
        """Of all prompts, as they come; answer i of prompt p has index p * n + i. To be closed when left early."""
        if len(asks) == 1:
            return self._pieces(call, call.key, asks[0], wishes)
        return _merged(
            [self._pieces(call, f"{call.key}-{place}", ask, wishes) for place, ask in enumerate(asks)],
            [ask.params.n for ask in asks],
        )

    async def _pieces(self, call: Call, key: str, ask: Ask, wishes: Wishes) -> AsyncIterator[Piece]:
        params, name = ask.params, ask.model.name
        request = Request(
            id=key,
            model=name,
            tokens=len(ask.prompt),
            max_tokens=params.max_tokens,
            answers=params.n,
            prompt=ask.prompt,
            slo_s=wishes.slo_s,
            tpot_s=wishes.tpot_s,
            tenant=call.tenant,
            priority=wishes.priority,
        )
        track = Track(self._meters.models[name], request)

        def run(group: Runs) -> AsyncIterator[Produced]:
            track.run()
            return group.generate(key, name, ask.prompt, params)

        texts: list[TextStream | None] = [self._text(ask) for _ in range(params.n)]
        finished: list[str] = []
        stream: Any = None
        try:
            stream = self._router.submit(request, run)
            async for produced in stream:
                text = texts[produced.index]
                if text is None:
                    continue
                if produced.token is not None or produced.text:
                    track.token(produced.index)
                piece = _piece(produced, text, ask.include_stop)
                if piece.cached:
                    self._meters.models[name].cached_tokens += piece.cached
                if piece.finish is not None:
                    texts[produced.index] = None
                    finished.append(piece.finish)
                    if len(finished) == params.n:
                        track.finish(finished)
                yield piece
                if len(finished) == params.n:
                    break
            if len(finished) < params.n:
                raise NotServed("failed", "the answer ended before it was complete")
        except Exception as error:
            track.fail(getattr(error, "reason", None) or as_http(error).code)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            if len(finished) < params.n:
                track.fail("cancelled")
            raise
        finally:
            track.close()
            if stream is not None:
                await (stream.finish() if len(finished) == params.n else stream.aclose())

    def _text(self, ask: Ask) -> TextStream:
        return TextStream(
            ask.model.tokenizer,
            ask.stops,
            include_stop=ask.include_stop,
            skip_special_tokens=ask.skip_special_tokens,
            context=ask.prompt if ask.continues else (),
        )


def _piece(produced: Produced, text: TextStream, include_stop: bool) -> Piece:
    finish = produced.finish
    if finish == "cancelled":
        raise NotServed("cancelled", "the request was cancelled")
    shown = ""
    # The token that ends an answer is no part of its text.
    if produced.token is not None and (finish != "stop" or include_stop):
        shown = text.push((produced.token,))
    if produced.text:
        shown = text.push_text(produced.text)
    if finish is not None:
        shown += text.finish()
    if text.stopped is not None:
        finish = "stop"
    return Piece(produced.index, shown, produced.token, finish, produced.logprobs, produced.cached_prompt)


async def _merged(streams: Sequence[AsyncIterator[Piece]], answers: Sequence[int]) -> AsyncIterator[Piece]:
    """The first error ends all."""
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(_MOST_WAITING)

    async def pump(stream: Any, base: int) -> None:
        try:
            async with aclosing(stream):
                async for piece in stream:
                    piece.index += base
                    await queue.put(piece)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    bases = [sum(answers[:place]) for place in range(len(answers))]
    pumps = [asyncio.create_task(pump(stream, base)) for stream, base in zip(streams, bases, strict=True)]
    try:
        left = len(pumps)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for one in pumps:
            one.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
