"""Prompts of a wanted number of tokens: token ids where the server says which there are, words otherwise.

Every prompt is its own, drawn from the seed and the request's number: no two share a prefix that a server could have
kept, and a repeated run sends the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Short, common and distinct: a token each with most tokenizers, when a space goes before.
SAMPLE = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city name "
    "president team minute idea body back parent face level office door health person art war history "
    "party result change morning reason research girl guy moment air teacher force education "
).rstrip()
WORDS = tuple(SAMPLE.split())
_PURPOSE = 3
"""Beside the streams of arrivals, tokens and dealing."""


@dataclass(frozen=True, eq=False)
class Prompts:
    """`pool`: token ids to draw from; None where only text will do."""

    seed: int
    pool: NDArray[np.int64] | None = None
    tokens_per_word: float = 1.0

    def ids(self, tokens: int, request: int) -> list[int]:
        assert self.pool is not None
        drawn: list[int] = self.pool[self._rng(request).integers(self.pool.size, size=tokens)].tolist()
        return drawn

    def text(self, tokens: int, request: int) -> str:
        count = max(round(tokens / self.tokens_per_word), 1)
        return " ".join([WORDS[at] for at in self._rng(request).integers(len(WORDS), size=count).tolist()])

    def _rng(self, request: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence((self.seed, request, _PURPOSE))))


def make_prompts(seed: int, sample_tokens: list[int] | None) -> Prompts:
    """`sample_tokens`: what SAMPLE is in the model's tokens, if the server told."""
    if not sample_tokens:
        return Prompts(seed)
    return Prompts(seed, np.unique(np.array(sample_tokens, dtype=np.int64)), len(sample_tokens) / len(WORDS))
