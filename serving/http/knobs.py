"""What a request may ask of sampling, as OpenAI's clients (and vLLM's) write it, and how it becomes SamplingParams."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from serving.http.errors import BadRequest
from serving.http.service import ServedModel
from serving.sampling import SamplingParams, validate
from serving.sampling.parameters import LARGEST_REPETITION_PENALTY, MAX_CHOICES
from serving.text import check_stops

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
Count = Annotated[int, Meta(ge=1, le=10**8)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]

_PASSED = (
    "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "seed",
    "min_tokens", "ignore_eos", "n", "logit_bias",
)  # fmt: skip


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None
    """Send the counts of tokens after the last piece of text."""


class Knobs(msgspec.Struct, frozen=True, kw_only=True):
    """Common to chat and completions. Fields that are not known are passed over."""

    model: ModelName
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """0 or -1: off."""
    min_p: Fraction | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=LARGEST_REPETITION_PENALTY)] | None = None
    logit_bias: dict[int, float] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=10**8)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def sends_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def sampling_params(
    knobs: Knobs, model: ServedModel, prompt_tokens: int, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """`max_tokens`: None for all that the model's positions leave. BadRequest names what is out of range."""
    room = model.max_positions - prompt_tokens
    if room < 1:
        raise BadRequest(
            f"prompt: {prompt_tokens} tokens; {model.name} holds {model.max_positions}, answer included",
            param="prompt",
            code="context_length_exceeded",
        )
    if max_tokens is not None and max_tokens > model.max_positions:
        raise BadRequest(
            f"max_tokens: {max_tokens}; {model.name} holds {model.max_positions} tokens, prompt included",
            param="max_tokens",
            code="context_length_exceeded",
        )
    wishes: dict[str, Any] = dict(model.defaults)
    wishes |= {name: value for name in _PASSED if (value := getattr(knobs, name)) is not None}
    wishes["top_k"] = max(0, int(wishes.get("top_k", 0)))
    most = room if max_tokens is None else min(max_tokens, room)
    wishes |= {"max_tokens": most, "logprobs": logprobs, "stop_token_ids": tuple(knobs.stop_token_ids or ())}
    params = SamplingParams(**wishes)
    check_stops(knobs.stops)
    validate(params, model.vocabulary, model.max_positions)
    return params
