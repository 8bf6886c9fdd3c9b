"""A model's tokenizer: text to token ids and back, messages to a prompt. Knows nothing of models or requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from placement.errors import InputError
from placement.files import read_bytes
from serving.text.chat_template import ChatTemplate
from serving.text.detokenize import BytePieces, ByteText, Detokenizer, PieceText, TextPieces, WindowText
from serving.text.model_files import TextFiles, read_text_files
from serving.text.rules import ByteRules, TextRules, read_rules


class Tokenizer:
    """Reads alone, so that many requests can share one."""

    def __init__(self, backend: tokenizers.Tokenizer, files: TextFiles, where: str) -> None:
        # Embedding models ship with both switched on; how long a text may be is the request's business.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._special_ids = {id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special}
        self._chat = ChatTemplate(files.templates, files.special_tokens, where)
        self.has_chat_template = bool(files.templates)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.bos_token_id: int | None = backend.token_to_id(files.special_tokens.get("bos_token", ""))
        self.eos_token_ids = _eos_token_ids(backend, files, where)
        """Any of these ends an output."""
        rules = read_rules(json.loads(backend.decoder.__getstate__()) if backend.decoder else None)
        self._pieces = {skip: _pieces(rules, self._shown(skip)) for skip in (False, True)}

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """From a directory in Hugging Face's layout; an InputError names the file that is missing or damaged."""
        file = path / "tokenizer.json"
        if not file.exists():
            raise InputError(f"{file}: missing; a model that reads or writes text needs it")
        try:
            backend = tokenizers.Tokenizer.from_buffer(read_bytes(file))
        except InputError:
            raise
        except Exception as error:  # tokenizers raises nothing more special
            raise InputError(f"{file}: not a tokenizer: {' '.join(str(error).split())}") from error
        return cls(backend, read_text_files(path), str(path))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The text's token ids; special tokens (such as bos) as tokenizer.json adds them."""
        return self.encode_all([text], add_special_tokens)[0]

    def encode_all(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Of several texts. Other threads run meanwhile, which the backend's call for a single text does not allow."""
        try:
            found = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise InputError("the text is not valid Unicode: it holds half of a surrogate pair") from error
        return [one.ids for one in found]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for in the middle of a text: not always whole characters."""
        pieces = self._pieces[False]
        if pieces is None:
            return self._backend.decode([token_id], skip_special_tokens=False).encode()
        piece = pieces[token_id]
        if isinstance(piece, bytes):
            return piece
        return bytes([piece]) if isinstance(piece, int) else (piece or "").encode()

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """The text of one output while it grows."""
        pieces = self._pieces[skip_special_tokens]
        if isinstance(pieces, BytePieces):
            return ByteText(pieces)
        if isinstance(pieces, TextPieces):
            return PieceText(pieces)
        return WindowText(lambda ids: self.decode(ids, skip_special_tokens), self._shown(skip_special_tokens))

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for these messages (plain data, as JSON gives it); it holds its special tokens as text, so encode
        it without adding them."""
        return self._chat.render(messages, tools, add_generation_prompt, variables)

    def _shown(self, skip_special_tokens: bool) -> _Shown:
        return _Shown(self._backend, self._special_ids if skip_special_tokens else set())


class _Shown:
    """The vocabulary's word for a token id; None for one that is skipped or unknown."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: set[int]) -> None:
        self._backend, self._skipped = backend, skipped

    def __call__(self, token_id: int) -> str | None:
        return None if token_id in self._skipped else self._backend.id_to_token(token_id)


def _pieces(rules: ByteRules | TextRules | None, shown: _Shown) -> BytePieces | TextPieces | None:
    if isinstance(rules, ByteRules):
        return BytePieces(rules, shown)
    return TextPieces(rules, shown) if rules is not None else None


def _eos_token_ids(backend: tokenizers.Tokenizer, files: TextFiles, where: str) -> tuple[int, ...]:
    """What the model's files name, and the tokenizer's own eos token."""
    ids = list(files.eos_token_ids)
    token = files.special_tokens.get("eos_token")
    if token is not None:
        own = backend.token_to_id(token)
        if own is None:
            raise InputError(f"{where}: eos_token {token!r} of tokenizer_config.json is not a token of tokenizer.json")
        ids.append(own)
    return tuple(dict.fromkeys(ids))
