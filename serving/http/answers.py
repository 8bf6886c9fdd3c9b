"""Pieces gathered into whole answers, and counted. Shared by chat and completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from serving.http.call import Call
from serving.http.generation import Ask, Piece
from serving.http.openai_types import CachedTokens, Finish, Usage

DONE = b"data: [DONE]\n\n"
encode = msgspec.json.Encoder().encode


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


@dataclass
class Tally:
    """Counts the tokens of one request; its facts go into the log."""

    prompt_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0

    def add(self, piece: Piece) -> None:
        if piece.token is not None or piece.text:  # of an engine that tells no tokens, each piece is taken for one
            self.output_tokens += 1
        if piece.cached:
            self.cached_tokens = min(self.prompt_tokens, self.cached_tokens + piece.cached)

    def usage(self) -> Usage:
        total = self.prompt_tokens + self.output_tokens
        return Usage(self.prompt_tokens, self.output_tokens, total, CachedTokens(self.cached_tokens))

    def note(self, call: Call) -> None:
        call.facts |= {"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}


@dataclass
class Answer:
    """One answer, complete when it has a finish."""

    pieces: list[Piece] = field(default_factory=list)
    finish: Finish = "stop"

    @property
    def text(self) -> str:
        return "".join([piece.text for piece in self.pieces])


def tally(asks: Sequence[Ask]) -> Tally:
    return Tally(sum(len(ask.prompt) for ask in asks))


async def gather(pieces: AsyncIterator[Piece], asks: Sequence[Ask], counts: Tally) -> list[Answer]:
    """All answers in order."""
    answers = [Answer() for ask in asks for _ in range(ask.params.n)]
    async with aclosing(pieces):  # type: ignore[type-var]
        async for piece in pieces:
            counts.add(piece)
            answer = answers[piece.index]
            answer.pieces.append(piece)
            if piece.finish is not None:
                answer.finish = piece.finish
    return answers
