"""What a request may ask of sampling, and the ranges that are accepted. Knows nothing of logits or HTTP."""

from __future__ import annotations

import msgspec

from placement.errors import InputError

MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_BIASES = 300
MAX_STOP_TOKENS = 256
LARGEST_BIAS = 100.0
LARGEST_REPETITION_PENALTY = 10.0
_SEEDS = -(2**63), 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The wishes of one request, the same for each of its choices."""

    max_tokens: int
    """Output tokens at most."""
    min_tokens: int = 0
    """Output tokens before which neither end-of-sequence nor a stop token may come."""
    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_k: int = 0
    """Only the k likeliest tokens; 0 is off."""
    top_p: float = 1.0
    """Only the fewest tokens whose probabilities sum to this."""
    min_p: float = 0.0
    """Only tokens at least this share as likely as the likeliest."""
    seed: int | None = None
    """The same seed gives the same output; None draws one."""
    repetition_penalty: float = 1.0
    """Divides (positive) or multiplies (negative) the logits of tokens in prompt or output."""
    presence_penalty: float = 0.0
    """Subtracted once from the logits of tokens in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it is in the output."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the output, besides end-of-sequence."""
    ignore_eos: bool = False
    """Go on after end-of-sequence."""
    logprobs: int | None = None
    """How many alternatives to report beside the chosen token's log-probability; None reports nothing."""
    n: int = 1
    """Choices for one prompt."""


def validate(params: SamplingParams, vocab_size: int, max_len: int) -> None:
    """An InputError names the first field that is out of range; `max_len` is what the model can hold in tokens."""
    _within("max_tokens", params.max_tokens, 1, max_len)
    _within("min_tokens", params.min_tokens, 0, params.max_tokens, "max_tokens")
    _within("temperature", params.temperature, 0, 2)
    _require(params.top_k >= 0, "top_k", params.top_k, "0 (off) or more is needed")
    _above_zero("top_p", params.top_p, 1)
    _within("min_p", params.min_p, 0, 1)
    if params.seed is not None:
        _within("seed", params.seed, *_SEEDS)
    _above_zero("repetition_penalty", params.repetition_penalty, LARGEST_REPETITION_PENALTY)
    _within("presence_penalty", params.presence_penalty, -2, 2)
    _within("frequency_penalty", params.frequency_penalty, -2, 2)
    if params.logprobs is not None:
        _within("logprobs", params.logprobs, 0, MAX_LOGPROBS)
    _within("n", params.n, 1, MAX_CHOICES)
    _at_most("stop_token_ids", len(params.stop_token_ids), MAX_STOP_TOKENS)
    for token in params.stop_token_ids:
        _token("stop_token_ids", token, vocab_size)
    _biases(params.logit_bias or {}, vocab_size)


def _biases(biases: dict[int, float], vocab_size: int) -> None:
    _at_most("logit_bias", len(biases), MAX_BIASES)
    for token, bias in biases.items():
        _token("logit_bias", token, vocab_size)
        _within(f"logit_bias of token {token}", bias, -LARGEST_BIAS, LARGEST_BIAS)


def _within(field: str, value: float, least: float, most: float, most_is: str = "") -> None:
    """NaN and infinity fail the comparison."""
    limit = f"{most_is} ({most:g})" if most_is else f"{most}"
    _require(least <= value <= most, field, value, f"it must be from {least} to {limit}")


def _above_zero(field: str, value: float, most: float) -> None:
    _require(0 < value <= most, field, value, f"it must be above 0 and at most {most:g}")


def _at_most(field: str, count: int, most: int) -> None:
    if count > most:
        raise InputError(f"{field}: {count} entries; at most {most} are accepted")


def _token(field: str, token: int, vocab_size: int) -> None:
    _require(0 <= token < vocab_size, field, token, f"a token id of this model is from 0 to {vocab_size - 1}")


def _require(holds: bool, field: str, value: float, right: str) -> None:
    if not holds:
        raise InputError(f"{field}: {value} is out of range; {right}")
