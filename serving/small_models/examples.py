"""What the encoders learn from: neighbouring parts of one documentation, and lines that are code or prose."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from serving.small_models.documents import HELD_OUT_EVERY, Split
from serving.small_models.text import Corpus, Entry

LABELS = ("code", "prose")
LINES = 6000
"""Of each label."""

_SENTENCE_END = re.compile(r"(?<=[.!?]) +(?=[A-Z])")
_SHORTEST, _LONGEST = 20, 200
"""Characters of a line or part worth learning from."""


class Pair(NamedTuple):
    """Two texts that stand beside each other."""

    first: str
    second: str


class Line(NamedTuple):
    text: str
    label: int


def neighbours(pieces: Iterable[Entry]) -> list[Pair]:
    """Each sentence or other part of a piece with the next one of the same piece, no part in two pairs."""
    found = []
    for piece in pieces:
        parts = list(_parts(piece))
        found += [Pair(*parts[place : place + 2]) for place in range(0, len(parts) - 1, 2)]
    return found


def lines(corpus: Corpus, pieces: Split, seed: int) -> tuple[list[Line], list[Line]]:
    """(to learn from, held out): as many lines of code as of prose, each text once, in the seed's order."""
    draw = random.Random(seed)
    code = sorted({line for line in corpus.code if _is_line(line)})
    everything = (*pieces.train, *pieces.held_out)
    prose = sorted({part for piece in everything for part in _parts(piece) if _is_line(part)} - set(code))
    count = min(LINES, len(code), len(prose))
    found = [Line(text, label) for label, texts in enumerate((code, prose)) for text in draw.sample(texts, count)]
    draw.shuffle(found)
    edge = len(found) // HELD_OUT_EVERY
    return found[edge:], found[:edge]


def _parts(piece: Entry) -> Iterator[str]:
    for paragraph in piece.paragraphs:
        for part in _SENTENCE_END.split(paragraph):
            if len(part) >= _SHORTEST and "\n" not in part and not part.startswith((" ", ">>>")):
                yield part


def _is_line(text: str) -> bool:
    return _SHORTEST <= len(text) <= _LONGEST
