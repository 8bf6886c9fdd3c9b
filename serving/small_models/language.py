"""Training a causal language model, and how well it predicts: perplexity on text it has not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from serving.models.decoder import Decoder
from serving.small_models.attend import causal

TARGETS_AT_ONCE = 4096
"""Bounds the memory that measuring takes."""


class Windows:
    """Batches of windows of a token stream: each window once, in a drawn order, then all again in another."""

    def __init__(self, tokens: Tensor, context: int, batch: int, generator: torch.Generator) -> None:
        usable = (len(tokens) - 1) // context
        assert usable >= 1, "the text is shorter than one window"
        self._inputs = tokens[: usable * context].view(usable, context)
        self._targets = tokens[1 : usable * context + 1].view(usable, context)
        self._batch, self._generator = batch, generator
        self._order = torch.empty(0, dtype=torch.int64)

    def next(self) -> tuple[Tensor, Tensor]:
        """(inputs, targets), both [batch, context]"""
        while len(self._order) < self._batch:
            drawn = torch.randperm(len(self._inputs), generator=self._generator)
            self._order = torch.cat((self._order, drawn))
        chosen, self._order = self._order.split([self._batch, len(self._order) - self._batch])
        return self._inputs[chosen], self._targets[chosen]


def next_token_loss(model: Decoder, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens of [sequences, time]."""
    sequences, time = inputs.shape
    positions = torch.arange(time).repeat(sequences)
    logits = model.logits(model(inputs.flatten(), positions, causal(sequences)))
    assert logits is not None
    return F.cross_entropy(logits, targets.flatten())


def perplexity(model: Decoder, tokens: Sequence[int] | Tensor, context: int = 256) -> float:
    """exp of the mean loss over `tokens` in windows of `context`, each predicted from its own window alone.

    Any unsharded model of any precision; the last tokens, too few for a window, do not count.
    """
    stream = torch.as_tensor(tokens, dtype=torch.int64)
    context = min(context, len(stream) - 1)
    usable = (len(stream) - 1) // context
    inputs = stream[: usable * context].view(usable, context)
    targets = stream[1 : usable * context + 1].view(usable, context)
    at_once = max(1, TARGETS_AT_ONCE // context)
    with torch.inference_mode():
        total = sum(
            next_token_loss(model, some, wanted).item() * len(some)
            for some, wanted in zip(inputs.split(at_once), targets.split(at_once), strict=True)
        )
    return math.exp(total / usable)


def unigram_perplexity(train: Tensor, tokens: Tensor, vocabulary: int) -> float:
    """Of a model that knows how frequent each token is and nothing else (counts plus one)."""
    counts = torch.bincount(train, minlength=vocabulary).double() + 1
    return math.exp(-(counts / counts.sum()).log()[tokens].mean().item())
