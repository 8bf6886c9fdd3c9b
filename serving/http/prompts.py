"""From what a request says to the tokens a model reads. Long texts are turned beside the event loop, two at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from serving.http.errors import BadRequest
from serving.http.service import ServedModel
from serving.http.settings import HttpSettings

T = TypeVar("T")
_THREADS = 2
_CHARACTERS_PER_TOKEN = 64
"""A text with more of them than this for each token allowed is refused unread: tokens are a few characters long."""


class Prompts:
    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenise")
        # Otherwise tokenizers starts a thread a core, and cores are the workers' devices.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    async def tokens(
        self, model: ServedModel, given: Sequence[str | list[int]], param: str, *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Of all texts, or the token ids that were given in their place; checked against the limits."""
        texts = [one for one in given if isinstance(one, str)]
        rows = [one for one in given if not isinstance(one, str)]
        if texts:
            rows = await self.encode(model, texts, param, add_special_tokens)
        most = self._most(model)
        for ids in rows:
            if not ids:
                raise BadRequest(f"{param}: it has no tokens; at least one is needed", param=param)
            if len(ids) > most:
                raise _too_long(f"{len(ids)} tokens", most, param)
            if max(ids) >= model.vocabulary:
                raise BadRequest(f"{param}: token ids must be from 0 to {model.vocabulary - 1}", param=param)
        return rows

    async def encode(
        self, model: ServedModel, texts: Sequence[str], param: str, add_special_tokens: bool
    ) -> list[list[int]]:
        """However many tokens they have."""
        longest, most = max(map(len, texts)), self._most(model)
        if longest > most * _CHARACTERS_PER_TOKEN:
            raise _too_long(f"{longest} characters", most, param)
        characters = sum(map(len, texts))
        return await self.beside(characters, lambda: model.tokenizer.encode_all(texts, add_special_tokens))

    async def beside(self, characters: int, work: Callable[[], T]) -> T:
        """What is short is done at once."""
        if characters <= self._settings.thread_characters:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _most(self, model: ServedModel) -> int:
        return min(self._settings.prompt_tokens, model.max_positions)


def split_inputs(given: str | Sequence[str | int | list[int]], param: str) -> list[str | list[int]]:
    """Texts and lists of tokens, whichever of the four ways they were given; BadRequest for a mixture."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequest(f"{param}: nothing given; at least one text is needed", param=param)
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise BadRequest(f"{param}: texts and tokens are mixed; give either", param=param)
    return [list(given)] if int in kinds else list(given)  # type: ignore[arg-type]


def _too_long(what: str, most: int, param: str) -> BadRequest:
    return BadRequest(f"{param}: {what}; at most {most} tokens are accepted", param, "context_length_exceeded")
