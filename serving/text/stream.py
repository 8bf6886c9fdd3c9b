"""The text of one output while its tokens come: whole characters, right spaces, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from serving.text.stops import StopStrings
from serving.text.tokenizer import Tokenizer

_CONTEXT = 16
"""Tokens of the prompt that can have a say in how the first token of the output looks."""


class TextStream:
    """All pushes and the finish together give the decoded output, cut at its first stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        context: Sequence[int] = (),
    ) -> None:
        """`context`: the tokens of a prompt that the output continues in mid-sentence. SentencePiece-like tokenizers
        drop the space before the first word of a text; after a context the output is not the start of one."""
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens)
        self._stops = StopStrings(stop, include=include_stop)
        if len(context):
            self._detokenizer.push(context[-_CONTEXT:])
            self._detokenizer.finish()

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.stopped

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens let be shown: neither half of a character nor part of a possible stop string."""
        if self._stops.stopped is not None:
            return ""
        return self._stops.push(self._detokenizer.push(token_ids))

    def push_text(self, text: str) -> str:
        """The same for text that comes as such."""
        return "" if self._stops.stopped is not None else self._stops.push(text)

    def finish(self) -> str:
        """What was kept back, when no more tokens come."""
        if self._stops.stopped is not None:
            return ""
        last = self._stops.push(self._detokenizer.finish())
        return last + self._stops.finish()
