"""OpenAI's completions as an engine's answers: what is asked of the server for a request, and what its events produce.

Tokens where the server tells their ids (`return_token_ids`, as vLLM and we do), else pieces of text. Only values:
nothing of sockets or processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from serving.engine.outputs import Output, Produced, Refused
from serving.engine.sequence import FinishReason
from serving.sampling import SamplingParams, TokenLogprobs

MOST_EVENT_BYTES = 4 * 2**20
_EXTRAS = ("min_tokens", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos")
"""Asked for only where a request wishes them: not every server knows them."""
_DEFAULTS = SamplingParams(max_tokens=1)
_TOKEN = "token_id:"


class _Logprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Error(msgspec.Struct):
    message: str = "it gave no reason"


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | str | None = None
    """OpenAI's is an object; other servers give the text alone."""

    @property
    def failure(self) -> str | None:
        return self.error.message if isinstance(self.error, _Error) else self.error


_decoder = msgspec.json.Decoder(_Event)


def completion_body(model: str, prompt: list[int] | str, params: SamplingParams) -> bytes:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "stream": True,
        "return_token_ids": True,
    }
    body |= {name: value for name in _EXTRAS if (value := getattr(params, name)) != getattr(_DEFAULTS, name)}
    if params.n > 1:
        body["n"] = params.n
    if params.seed is not None:
        body["seed"] = params.seed
    if params.stop_token_ids:
        body["stop_token_ids"] = params.stop_token_ids
    if params.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    if params.logprobs is not None:
        body |= {"logprobs": params.logprobs, "return_tokens_as_token_ids": True}
    return msgspec.json.encode(body)


class CompletionStream:
    """Server-sent events of one request, in pieces as the network gives them; `push` gets what they produce."""

    def __init__(self, request: str, params: SamplingParams, push: Callable[[Output], None]) -> None:
        self.unfinished = params.n
        self._request, self._params, self._push = request, params, push
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_EVENT_BYTES:
            raise ValueError(f"an event of over {MOST_EVENT_BYTES} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                said = line[5:].strip()
                if said and said != b"[DONE]":
                    self._take(_decoder.decode(said))

    def conclude(self, status: int) -> None:
        """No more will come."""
        if self.unfinished <= 0:
            return
        self.unfinished = 0
        self._push(refusal(self._request, status, self._rest))

    def _take(self, event: _Event) -> None:
        if event.failure is not None:
            self.unfinished = 0
            self._push(Refused(self._request, "failed", event.failure))
            return
        for choice in event.choices:
            finish = _finish(choice.finish_reason)
            self.unfinished -= finish is not None
            if choice.token_ids is None:
                if choice.text or finish is not None:
                    self._push(Produced(self._request, choice.index, None, finish, text=choice.text or ""))
                continue
            logprobs = _logprobs(choice)
            last = len(choice.token_ids) - 1
            for place, token in enumerate(choice.token_ids):
                said = logprobs[place] if place < len(logprobs) else None
                self._push(Produced(self._request, choice.index, token, finish if place == last else None, said))
            if last < 0 and finish is not None:
                self._push(Produced(self._request, choice.index, None, finish))


def refusal(request: str, status: int, body: bytes) -> Refused:
    """Of an answer that is none."""
    if status == 200:
        return Refused(request, "failed", "the engine's answer ended before it was complete")
    code = "invalid" if status in (400, 413, 422) else "failed"
    return Refused(request, code, f"the engine answers {status}: {error_message(body)}")


def error_message(body: bytes) -> str:
    """In OpenAI's form, or as it is."""
    try:
        failure = _decoder.decode(body).failure
        if failure is not None:
            return failure
    except msgspec.DecodeError:
        pass
    return " ".join(body[:300].decode("utf-8", "replace").split())


def _finish(reason: str | None) -> FinishReason | None:
    if reason is None or reason == "":
        return None
    return "length" if reason == "length" else "cancelled" if reason == "abort" else "stop"


def _logprobs(choice: _Choice) -> list[TokenLogprobs]:
    """Of servers that tell tokens by their ids; others' cannot be told apart."""
    said = choice.logprobs
    if said is None or not all(token.startswith(_TOKEN) for token in said.tokens):
        return []
    tops = said.top_logprobs or [None] * len(said.tokens)
    result = []
    for logprob, top in zip(said.token_logprobs, tops, strict=False):
        ranked = sorted((-value, int(name.removeprefix(_TOKEN))) for name, value in (top or {}).items())
        result.append(TokenLogprobs(logprob or 0.0, [token for _, token in ranked], [-value for value, _ in ranked]))
    return result
