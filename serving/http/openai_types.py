"""The answers of OpenAI's API, as far as text goes."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

Finish = Literal["stop", "length"]


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenLogprob]


class ChatMessage(msgspec.Struct, frozen=True):
    content: str
    role: Literal["assistant"] = "assistant"


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatAnswer(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None


class ChatChunk(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    object: Literal["chat.completion.chunk"]
    usage: Usage | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    token_ids: list[int] | UnsetType = UNSET
    """Where they were asked for."""


class CompletionAnswer(msgspec.Struct, frozen=True):
    """A whole answer, or a chunk of one."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None
    object: Literal["text_completion"] = "text_completion"


class Embedding(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float] | str
    """Numbers, or little-endian float32 in base64."""
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingAnswer(msgspec.Struct, frozen=True):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class ModelAnswer(msgspec.Struct, frozen=True):
    """One model; `state`, `kind`, `max_model_len` and `reason` are ours."""

    id: str
    created: int
    state: str
    kind: str
    max_model_len: int
    reason: str | None
    """Why it cannot be served at the moment."""
    object: Literal["model"] = "model"
    owned_by: str = "penstock"


class ModelsAnswer(msgspec.Struct, frozen=True):
    data: list[ModelAnswer]
    object: Literal["list"] = "list"
