"""What all models of one run are made from, read and learned once, when first asked for."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from placement.errors import InputError
from serving.small_models.documents import Split, documents, split
from serving.small_models.text import Corpus, Entry, read_corpus
from serving.small_models.tokenizer import Specials, learn_tokenizer


class Material:
    """The corpus and the tokenizers learned from it."""

    def __init__(self, library: Path | None = None) -> None:
        self._library = library
        self._tokenizers: dict[tuple[Specials, int], Tokenizer] = {}

    @cached_property
    def corpus(self) -> Corpus:
        return read_corpus(self._library)

    @cached_property
    def pieces(self) -> Split:
        return split(self.corpus)

    def tokenizer(self, specials: Specials, size: int) -> Tokenizer:
        """Learned from what is not held out."""
        if (specials, size) not in self._tokenizers:
            texts = (piece.text for piece in self.pieces.train)
            self._tokenizers[specials, size] = learn_tokenizer(texts, size, specials)
        return self._tokenizers[specials, size]


def token_stream(tokenizer: Tokenizer, pieces: tuple[Entry, ...], seed: int, small_talk: bool) -> Tensor:
    """The documents one after another, [tokens]."""
    encoded = tokenizer.encode_batch(documents(pieces, seed, small_talk))
    return torch.tensor([token for document in encoded for token in document.ids])


def held_out_tokens(directory: Path) -> Tensor:
    """The text that the language model in `directory` has not seen, in its own tokens: for `perplexity`."""
    path = directory / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"{path}: not a tokenizer: {error}") from error
    return token_stream(tokenizer, split(read_corpus()).held_out, seed=0, small_talk=False)
