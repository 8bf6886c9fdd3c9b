"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from serving.http.answers import DONE, Answer, encode, event, gather, tally
from serving.http.call import Call
from serving.http.decode import decode
from serving.http.errors import BadRequest
from serving.http.generation import Ask, Generation, Piece
from serving.http.knobs import Count, Knobs, sampling_params
from serving.http.logprobs import chat_logprobs
from serving.http.openai_messages import Message, Messages, template_messages
from serving.http.openai_types import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    Delta,
)
from serving.http.prompts import Prompts
from serving.http.service import ServedModel, Service
from serving.http.wishes import Wishes, find_model, read_wishes
from serving.sampling.parameters import MAX_LOGPROBS

_CHUNK: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str


class ChatRequest(Knobs, frozen=True, kw_only=True):
    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    """Passed to the model's chat template."""
    tool_choice: str | dict[str, Any] | None = None
    """`none` hides the tools; anything else is passed to the template, which may heed it."""
    response_format: ResponseFormat | None = None
    """Only {"type": "text"}."""
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    """Further names for the template, such as enable_thinking."""


class Chat:
    def __init__(self, service: Service, generation: Generation, prompts: Prompts) -> None:
        self._service, self._generation, self._prompts = service, generation, prompts
        self._decoder = msgspec.json.Decoder(ChatRequest)

    async def __call__(self, call: Call) -> None:
        body = await call.body()
        request = decode(self._decoder, body)
        model = find_model(self._service.models, request.model, "generate")
        call.facts["model"] = model.name
        wishes = read_wishes(call)
        ask = await self._ask(request, model, len(body))
        if request.stream:
            await self._stream(call, ask, request, wishes)
        else:
            await self._whole(call, ask, wishes)

    async def _ask(self, request: ChatRequest, model: ServedModel, size: int) -> Ask:
        if request.response_format is not None and request.response_format.type != "text":
            raise BadRequest("response_format: only text is served", param="response_format")
        if request.top_logprobs is not None and not request.logprobs:
            raise BadRequest("top_logprobs: logprobs must be true with it", param="top_logprobs")
        most = self._service.settings.answers
        if (request.n or 1) > most:
            raise BadRequest(f"n: {request.n}; at most {most} answers a request", param="n")
        variables, tools = _variables(request), _tools(request)
        prompt = await chat_prompt(self._prompts, model, request.messages, size, variables, tools)
        limit = request.max_completion_tokens or request.max_tokens
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        return Ask(
            model=model,
            prompt=prompt,
            params=sampling_params(request, model, len(prompt), limit, logprobs),
            stops=request.stops,
            include_stop=bool(request.include_stop_str_in_output),
            skip_special_tokens=request.skip_special_tokens is not False,
        )

    async def _whole(self, call: Call, ask: Ask, wishes: Wishes) -> None:
        counts = tally([ask])
        answers = await gather(self._generation.pieces(call, [ask], wishes), [ask], counts)
        counts.note(call)
        choices = [_choice(index, answer, ask) for index, answer in enumerate(answers)]
        answer = ChatAnswer(f"chatcmpl-{call.key}", int(time.time()), ask.model.name, choices, counts.usage())
        await call.answer(encode(answer))

    async def _stream(self, call: Call, ask: Ask, request: ChatRequest, wishes: Wishes) -> None:
        """Headers go out with the first token, so that what fails before it is an HTTP error."""
        id_, created, name = f"chatcmpl-{call.key}", int(time.time()), ask.model.name
        counts = tally([ask])
        opened = [False] * ask.params.n
        async with aclosing(self._generation.pieces(call, [ask], wishes)) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                counts.add(piece)
                if not call.is_started:
                    await call.start_stream()
                head = b""
                if not opened[piece.index]:
                    opened[piece.index] = True
                    first = ChatChunkChoice(piece.index, Delta("assistant", ""))
                    head = event(ChatChunk(id_, created, name, [first], _CHUNK))
                if piece.text or piece.finish is not None or piece.logprobs is not None:
                    chunk = ChatChunk(id_, created, name, [_chunk_choice(piece, ask)], _CHUNK)
                    head += event(chunk)
                if head:
                    await call.write(head)
        counts.note(call)
        usage = event(ChatChunk(id_, created, name, [], _CHUNK, counts.usage())) if request.sends_usage else b""
        await call.write(usage + DONE, more=False)


async def chat_prompt(
    prompts: Prompts,
    model: ServedModel,
    messages: list[Message],
    size: int,
    variables: dict[str, Any],
    tools: list[dict[str, Any]] | None,
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """The tokens of a chat; BadRequest when the model has no template for one. `size`: bytes of the request."""
    tokenizer = model.tokenizer
    if not tokenizer.has_chat_template:
        raise BadRequest(
            f"model {model.name!r} has no chat template; send a plain prompt to /v1/completions",
            "model",
            "no_chat_template",
        )
    plain = template_messages(messages)
    text = await prompts.beside(size, lambda: tokenizer.apply_chat(plain, tools, add_generation_prompt, **variables))
    return (await prompts.tokens(model, [text], "messages", add_special_tokens=False))[0]


def _tools(request: ChatRequest) -> list[dict[str, Any]] | None:
    return None if request.tool_choice == "none" else request.tools or None


def _variables(request: ChatRequest) -> dict[str, Any]:
    variables = dict(request.chat_template_kwargs or {})
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in variables:
            raise BadRequest(f"chat_template_kwargs: {name} is not free", param="chat_template_kwargs")
    if request.tool_choice is not None:
        variables["tool_choice"] = request.tool_choice
    return variables


def _choice(index: int, answer: Answer, ask: Ask) -> ChatChoice:
    return ChatChoice(index, ChatMessage(answer.text), _logprobs(answer.pieces, ask), answer.finish)


def _chunk_choice(piece: Piece, ask: Ask) -> ChatChunkChoice:
    delta = Delta(content=piece.text) if piece.text or piece.finish is None else Delta()
    return ChatChunkChoice(piece.index, delta, _logprobs([piece], ask), piece.finish)


def _logprobs(pieces: Sequence[Piece], ask: Ask) -> ChatLogprobs | None:
    return None if ask.params.logprobs is None else chat_logprobs(ask.model.tokenizer, list(pieces))
