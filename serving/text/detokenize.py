"""The text of a growing list of tokens, a little at a time: all pushes and the finish together give what decoding all
tokens at once gives. The cost of a token does not grow with those before it. Knows nothing of stop strings.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from serving.text.rules import ByteRules, TextRules

BROKEN = "\ufffd"
"""Stands for bytes that are not, or not yet, a character."""
_CONTEXT = 6
"""Tokens a window keeps to decode the next ones in."""
_MOST_WAITING = 24
"""Tokens a window keeps back because their text may be half of a character."""


class Detokenizer(Protocol):
    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens add and later ones cannot change."""
        ...

    def finish(self) -> str:
        """Text that was kept back; what is pushed later goes on after it."""
        ...


class BytePieces(dict[int, bytes]):
    """Bytes of each token, found when first asked for; none for tokens that are not shown."""

    def __init__(self, rules: ByteRules, shown: Callable[[int], str | None]) -> None:
        self._rules, self._shown = rules, shown

    def __missing__(self, token_id: int) -> bytes:
        token = self._shown(token_id)
        piece = self[token_id] = b"" if token is None else self._rules.piece(token)
        return piece


class ByteText:
    """Byte-level tokens: an incremental UTF-8 decoder keeps back unfinished characters."""

    def __init__(self, pieces: BytePieces) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        return self._decoder.decode(b"".join([pieces[token_id] for token_id in token_ids]))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class TextPieces(dict[int, "str | int | None"]):
    """Text or byte of each token, found when first asked for; None for tokens that are not shown."""

    def __init__(self, rules: TextRules, shown: Callable[[int], str | None]) -> None:
        self.rules, self._shown = rules, shown

    def __missing__(self, token_id: int) -> str | int | None:
        token = self._shown(token_id)
        piece = self[token_id] = None if token is None else self.rules.piece(token)
        return piece

    def first(self, token_id: int) -> str | int | None:
        """As the first token of a text."""
        token = self._shown(token_id)
        return None if token is None else self.rules.piece(token, first=True)


class PieceText:
    """SentencePiece-like tokens. A run of byte tokens shows when it ends: one bad byte spoils the run, and every byte
    of it is then a U+FFFD, as tokenizers decodes it."""

    def __init__(self, pieces: TextPieces) -> None:
        self._pieces = pieces
        self._run = bytearray()
        self._begun = False
        self._to_strip = pieces.rules.strip_most

    def push(self, token_ids: Sequence[int]) -> str:
        parts: list[str] = []
        for token_id in token_ids:
            piece = self._pieces[token_id]
            if piece is None:
                continue
            if not self._begun:
                self._begun = True
                piece = self._pieces.first(token_id)
            if isinstance(piece, str):
                if self._run:
                    parts.append(self._end_run())
                parts.append(piece)
            elif piece is not None:
                self._run.append(piece)
        return self._stripped("".join(parts))

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def _end_run(self) -> str:
        run, self._run = self._run, bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return BROKEN * len(run)

    def _stripped(self, text: str) -> str:
        while self._to_strip and text:
            if not text.startswith(self._pieces.rules.strip):
                self._to_strip = 0
                break
            text = text[1:]
            self._to_strip -= 1
        return text


class WindowText:
    """Tokens of any other decoder: new ones are decoded after the last few. Right where a token's text depends on no
    token but its neighbours; `shown` tells the tokens that count."""

    def __init__(self, decode: Callable[[list[int]], str], shown: Callable[[int], str | None]) -> None:
        self._decode, self._shown = decode, shown
        self._context: deque[int] = deque(maxlen=_CONTEXT)
        self._before = ""
        self._waiting: list[int] = []

    def push(self, token_ids: Sequence[int]) -> str:
        self._waiting += [token_id for token_id in token_ids if self._shown(token_id) is not None]
        if not self._waiting:
            return ""
        text = self._decode([*self._context, *self._waiting])
        if text.endswith(BROKEN) and len(self._waiting) <= _MOST_WAITING:
            return ""
        return self._show(text)

    def finish(self) -> str:
        return self._show(self._decode([*self._context, *self._waiting])) if self._waiting else ""

    def _show(self, text: str) -> str:
        new = text[len(self._before) :]
        self._context.extend(self._waiting)
        self._waiting = []
        self._before = self._decode(list(self._context))
        return new
