"""What tokenizer.json's decoder does to tokens, for the two families of decoders whose text can be told token by token:
byte-level ones (GPT-2, Llama 3, Qwen) and SentencePiece-like ones (Llama 2, Mistral, Gemma, T5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_characters() -> dict[str, int]:
    """Byte-level vocabularies write bytes as characters: those Latin-1 prints as themselves, others from U+0100 on."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = MappingProxyType(_byte_characters())


@dataclass(frozen=True)
class ByteRules:
    """Every token is bytes; the text is their concatenation, with U+FFFD for what is not UTF-8."""

    def piece(self, token: str) -> bytes:
        """The bytes of one token; a token with any other character is its own UTF-8."""
        known = [_BYTES.get(character) for character in token]
        return token.encode() if None in known else bytes(byte for byte in known if byte is not None)


@dataclass(frozen=True)
class TextRules:
    """Every token is text, or (with byte_fallback) one byte of a character the vocabulary does not have."""

    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip: str = ""
    """A character dropped from the start of the text, `strip_most` times at most."""
    strip_most: int = 0
    dropped_from_first: str = ""
    """A character dropped from the first token."""

    def piece(self, token: str, *, first: bool = False) -> str | int:
        """Text, or a byte."""
        if first and self.dropped_from_first:
            token = token.replace(self.dropped_from_first, "")
        for old, new in self.replacements:
            token = token.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return int(match.group(1), 16)
        return token


def read_rules(decoder: Mapping[str, Any] | None) -> ByteRules | TextRules | None:
    """The rules of a decoder as tokenizer.json describes it; None for one that is not of these families."""
    if decoder is None:
        return None
    steps: list[Mapping[str, Any]] = list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return ByteRules()
    if [step["type"] for step in steps] == ["Metaspace"]:
        return _metaspace(steps[0])
    return _sentencepiece(steps)


def _metaspace(step: Mapping[str, Any]) -> TextRules:
    mark = step["replacement"]
    prepended = step.get("prepend_scheme", "always") != "never"
    return TextRules(replacements=((mark, " "),), dropped_from_first=mark if prepended else "")


def _sentencepiece(steps: Sequence[Mapping[str, Any]]) -> TextRules | None:
    """Replace (any number), ByteFallback, Fuse and Strip at the start, each optional, in this order."""
    kinds = " ".join(step["type"] for step in steps)
    if not re.fullmatch(r"(Replace ?)*(ByteFallback ?)?(Fuse( Strip)?)?", kinds):
        return None
    replaced = [step for step in steps if step["type"] == "Replace"]
    if any("String" not in step["pattern"] for step in replaced):
        return None
    strips = [step for step in steps if step["type"] == "Strip"]
    if any(step["stop"] for step in strips):
        return None
    return TextRules(
        replacements=tuple((step["pattern"]["String"], step["content"]) for step in replaced),
        byte_fallback=any(step["type"] == "ByteFallback" for step in steps),
        strip=strips[0]["content"] if strips else "",
        strip_most=strips[0]["start"] if strips else 0,
    )
