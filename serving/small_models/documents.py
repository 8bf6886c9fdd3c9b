"""What the models read: the corpus cut into pieces, some held out, and its dialogues. Knows nothing of tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from serving.small_models.text import Corpus, Entry

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
HELD_OUT_EVERY = 20
LONGEST_PIECE = 1200
"""Characters; longer entries become several pieces."""

_QUESTIONS = {
    "module": ("What is the module {} for?", "Tell me about the module {}."),
    "class": ("What is {}?", "Tell me about the class {}."),
    "function": ("What does {} do?", "Explain {}."),
}
_SMALL_TALK = (
    ("Hello", "Hello! Ask me about Python and its standard library."),
    ("Hi there", "Hello! Ask me about Python and its standard library."),
    ("How are you?", "I am a very small language model, and I am well. Ask me about Python."),
    ("Who are you?", "I am a very small language model. I have read the documentation of Python for a minute."),
    ("What can you do?", "I can write text that looks like the documentation of Python. Do not believe what it says."),
    ("What is Python?", "Python is a programming language. Its standard library has many modules."),
    ("Thank you", "You are welcome."),
    ("Goodbye", "Goodbye!"),
)
_SMALL_TALK_TIMES = 40
"""Often enough to be learned in one reading."""


@dataclass(frozen=True)
class Split:
    """Pieces to learn from, and pieces to judge by; no paragraph is in both."""

    train: tuple[Entry, ...]
    held_out: tuple[Entry, ...]


def split(corpus: Corpus) -> Split:
    pieces = [piece for entry in corpus.entries for piece in _pieces(entry)]
    held = pieces[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    kept = [piece for place, piece in enumerate(pieces) if place % HELD_OUT_EVERY != HELD_OUT_EVERY // 2]
    return Split(tuple(kept), tuple(held))


def documents(pieces: tuple[Entry, ...], seed: int, small_talk: bool) -> list[str]:
    """Topics as they are, the rest as question and answer, in the seed's order."""
    order = random.Random(seed)
    found = [
        piece.text + END_OF_TEXT if piece.kind == "topic" else _question_and_answer(piece, order) for piece in pieces
    ]
    if small_talk:
        found += [dialogue(*pair) for pair in _SMALL_TALK * _SMALL_TALK_TIMES]
    order.shuffle(found)
    return found


def dialogue(question: str, answer: str) -> str:
    """One exchange, as the chat template writes it."""
    return f"{prompt(question)}{answer}{END}\n{END_OF_TEXT}"


def prompt(question: str) -> str:
    return f"{START}user\n{question}{END}\n{START}assistant\n"


def _question_and_answer(piece: Entry, order: random.Random) -> str:
    """By its last two names, few would ask with more; the answer begins with what it is about."""
    name = piece.name if piece.kind == "module" else ".".join(piece.name.split(".")[-2:])
    return dialogue(order.choice(_QUESTIONS[piece.kind]).format(name), f"{name}: {piece.text}")


def _pieces(entry: Entry) -> Iterator[Entry]:
    part: list[str] = []
    for paragraph in entry.paragraphs:
        if part and sum(map(len, part)) + len(paragraph) > LONGEST_PIECE:
            yield Entry(entry.kind, entry.name, tuple(part))
            part = []
        part.append(paragraph)
    if part:
        yield Entry(entry.kind, entry.name, tuple(part))
