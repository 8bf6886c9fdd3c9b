"""POST /v1/completions: text or tokens in, more of it out."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from serving.http.answers import DONE, Answer, encode, event, gather, tally
from serving.http.call import Call
from serving.http.decode import decode
from serving.http.errors import BadRequest
from serving.http.generation import Ask, Generation, Piece
from serving.http.knobs import Count, Knobs, TokenId, sampling_params
from serving.http.logprobs import completion_logprobs
from serving.http.openai_types import CompletionAnswer, CompletionChoice, CompletionLogprobs
from serving.http.prompts import Prompts, split_inputs
from serving.http.service import ServedModel, Service
from serving.http.wishes import Wishes, find_model, read_wishes
from serving.sampling.parameters import MAX_LOGPROBS

_MAX_TOKENS = 16
"""OpenAI's, when none is given."""


class CompletionRequest(Knobs, frozen=True, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]
    """A text, several, the tokens of one, or the tokens of several."""
    max_tokens: Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    """Begin the answer with the prompt."""
    suffix: str | None = None
    """Not served."""
    best_of: int | None = None
    """Not served above n."""
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    """Tell the ids of the answer's tokens beside its text, as vLLM does."""
    return_tokens_as_token_ids: bool | None = None
    """Write the tokens of `logprobs` as token_id:N."""


class Completions:
    def __init__(self, service: Service, generation: Generation, prompts: Prompts) -> None:
        self._service, self._generation, self._prompts = service, generation, prompts
        self._decoder = msgspec.json.Decoder(CompletionRequest)

    async def __call__(self, call: Call) -> None:
        request = decode(self._decoder, await call.body())
        model = find_model(self._service.models, request.model, "generate")
        call.facts["model"] = model.name
        wishes = read_wishes(call)
        _refuse(request)
        asks = await self._asks(request, model)
        if request.stream:
            await self._stream(call, asks, request, wishes)
        else:
            await self._whole(call, asks, request, wishes)

    async def _asks(self, request: CompletionRequest, model: ServedModel) -> list[Ask]:
        given = split_inputs(request.prompt, "prompt")
        most = self._service.settings.answers
        if len(given) * (request.n or 1) > most:
            raise BadRequest(f"prompt: {len(given)} times n; at most {most} answers a request", param="prompt")
        special = request.add_special_tokens is not False
        prompts = await self._prompts.tokens(model, given, "prompt", add_special_tokens=special)
        return [
            Ask(
                model=model,
                prompt=prompt,
                params=sampling_params(
                    request, model, len(prompt), request.max_tokens or _MAX_TOKENS, request.logprobs
                ),
                stops=request.stops,
                include_stop=bool(request.include_stop_str_in_output),
                skip_special_tokens=request.skip_special_tokens is not False,
                continues=True,
            )
            for prompt in prompts
        ]

    async def _whole(self, call: Call, asks: list[Ask], request: CompletionRequest, wishes: Wishes) -> None:
        counts = tally(asks)
        answers = await gather(self._generation.pieces(call, asks, wishes), asks, counts)
        counts.note(call)
        n = asks[0].params.n
        choices = [_choice(index, answer, asks[index // n], request) for index, answer in enumerate(answers)]
        answer = CompletionAnswer(f"cmpl-{call.key}", int(time.time()), request.model, choices, counts.usage())
        await call.answer(encode(answer))

    async def _stream(self, call: Call, asks: list[Ask], request: CompletionRequest, wishes: Wishes) -> None:
        id_, created, name, n = f"cmpl-{call.key}", int(time.time()), request.model, asks[0].params.n
        counts = tally(asks)
        lengths: dict[int, int] = {}
        async with aclosing(self._generation.pieces(call, asks, wishes)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                counts.add(piece)
                if not call.is_started:
                    await call.start_stream()
                ask = asks[piece.index // n]
                echoed = _echo(ask, request) if piece.index not in lengths else ""
                offset = lengths.get(piece.index, 0) + len(echoed)
                lengths[piece.index] = offset + len(piece.text)
                tells = bool(request.return_token_ids)
                if echoed or piece.text or piece.finish is not None or piece.logprobs is not None or tells:
                    logprobs = _logprobs([piece], ask, offset, request)
                    ids = _ids([piece]) if tells else UNSET
                    choice = CompletionChoice(piece.index, echoed + piece.text, logprobs, piece.finish, ids)
                    await call.write(event(CompletionAnswer(id_, created, name, [choice], None)))
        counts.note(call)
        usage = event(CompletionAnswer(id_, created, name, [], counts.usage())) if request.sends_usage else b""
        await call.write(usage + DONE, more=False)


def _refuse(request: CompletionRequest) -> None:
    if request.suffix:
        raise BadRequest("suffix: not served; leave it out", param="suffix")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise BadRequest("best_of: not served; ask for n answers and choose", param="best_of")
    if request.echo and request.logprobs is not None:
        raise BadRequest("echo: not served with logprobs", param="echo")


def _echo(ask: Ask, request: CompletionRequest) -> str:
    return ask.model.tokenizer.decode(ask.prompt) if request.echo else ""


def _choice(index: int, answer: Answer, ask: Ask, request: CompletionRequest) -> CompletionChoice:
    logprobs = _logprobs(answer.pieces, ask, 0, request)
    ids = _ids(answer.pieces) if request.return_token_ids else UNSET
    return CompletionChoice(index, _echo(ask, request) + answer.text, logprobs, answer.finish, ids)


def _ids(pieces: list[Piece]) -> list[int]:
    return [piece.token for piece in pieces if piece.token is not None]


def _logprobs(pieces: list[Piece], ask: Ask, offset: int, request: CompletionRequest) -> CompletionLogprobs | None:
    if ask.params.logprobs is None:
        return None
    return completion_logprobs(ask.model.tokenizer, pieces, offset, bool(request.return_tokens_as_token_ids))
