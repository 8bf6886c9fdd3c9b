"""POST /tokenize and /detokenize: what a text is in a model's tokens, and back; the forms are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from serving.http.answers import encode
from serving.http.call import Call
from serving.http.decode import decode
from serving.http.errors import BadRequest
from serving.http.knobs import ModelName, TokenId
from serving.http.openai_chat import chat_prompt
from serving.http.openai_messages import Messages
from serving.http.prompts import Prompts
from serving.http.service import ServedModel, Service
from serving.http.wishes import find_model


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt, or messages."""

    model: ModelName | None = None
    """May be left out when one model is served."""
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class TokenizeAnswer(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    tokens: Annotated[list[TokenId], Meta(max_length=2**16)]
    model: ModelName | None = None


class DetokenizeAnswer(msgspec.Struct, frozen=True):
    prompt: str


class Tokens:
    def __init__(self, service: Service, prompts: Prompts) -> None:
        self._models: Mapping[str, ServedModel] = service.models
        self._prompts = prompts
        self._tokenize = msgspec.json.Decoder(TokenizeRequest)
        self._detokenize = msgspec.json.Decoder(DetokenizeRequest)

    async def tokenize(self, call: Call) -> None:
        body = await call.body()
        request = decode(self._tokenize, body)
        model = self._model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise BadRequest("prompt: give either a prompt or messages", param="prompt")
        if request.messages is not None:
            add = request.add_generation_prompt
            tokens = await chat_prompt(
                self._prompts, model, request.messages, len(body), {}, None, add_generation_prompt=add
            )
        else:
            texts = [request.prompt or ""]
            tokens = (await self._prompts.encode(model, texts, "prompt", request.add_special_tokens))[0]
        answer = TokenizeAnswer(len(tokens), model.max_positions, tokens)
        if request.return_token_strs:
            strings = await self._prompts.beside(len(tokens), lambda: _strings(model, tokens))
            answer = msgspec.structs.replace(answer, token_strs=strings)
        await call.answer(encode(answer))

    async def detokenize(self, call: Call) -> None:
        request = decode(self._detokenize, await call.body())
        model, tokens = self._model(request.model), request.tokens
        if tokens and max(tokens) >= model.vocabulary:
            raise BadRequest(f"tokens: ids must be from 0 to {model.vocabulary - 1}", param="tokens")
        text = await self._prompts.beside(len(tokens), lambda: model.tokenizer.decode(tokens, False))
        await call.answer(encode(DetokenizeAnswer(text)))

    def _model(self, name: str | None) -> ServedModel:
        if name is None and len(self._models) == 1:
            return next(iter(self._models.values()))
        if name is None:
            raise BadRequest("model: missing; several are served, so it is required", param="model")
        return find_model(self._models, name)


def _strings(model: ServedModel, tokens: list[int]) -> list[str]:
    return [model.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in tokens]
