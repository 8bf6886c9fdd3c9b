"""What a model's directory (Hugging Face layout) says about its text, besides tokenizer.json: the special tokens, which
tokens end an output, the chat templates. Knows nothing of token ids' text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from placement.errors import InputError
from placement.files import read_bytes

_SPECIAL_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_MAX_TEMPLATES = 32
_TEMPLATE = "chat_template"


@dataclass(frozen=True)
class TextFiles:
    """The files' content, each part with errors that name the file it came from."""

    special_tokens: Mapping[str, str]
    """By role: bos_token, eos_token, ..."""
    eos_token_ids: tuple[int, ...]
    """As generation_config.json says, or else config.json; empty when neither does."""
    templates: Mapping[str, str]
    """Sources of chat templates by name; "default" is the usual one."""


def read_text_files(directory: Path) -> TextFiles:
    """Every file is optional; an InputError names a damaged one."""
    config = read_object(directory / "tokenizer_config.json")
    special = _special_tokens(read_object(directory / "special_tokens_map.json"), directory / "special_tokens_map.json")
    special |= _special_tokens(config, directory / "tokenizer_config.json")
    ends = _eos_ids(directory / "generation_config.json") or _eos_ids(directory / "config.json")
    return TextFiles(special, ends, _templates(directory, config))


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is no file."""
    if not path.exists():
        return {}
    try:
        content = msgspec.json.decode(read_bytes(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: a JSON object is needed")
    return content


def _special_tokens(content: Mapping[str, Any], path: Path) -> dict[str, str]:
    """A token is given as its text, or as an object that holds its text."""
    tokens = {}
    for role in _SPECIAL_TOKENS:
        token = content.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        if text is None:
            continue
        if not isinstance(text, str):
            raise InputError(f"{path}: `{role}` is {token!r}; a string is needed")
        tokens[role] = text
    return tokens


def _eos_ids(path: Path) -> tuple[int, ...]:
    given = read_object(path).get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise InputError(f"{path}: `eos_token_id` is {given!r}; a token id or a list of them is needed")
    return tuple(ids)


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """chat_template.jinja (and its folder of named ones), or tokenizer_config.json, or chat_template.json."""
    files = {"default": directory / f"{_TEMPLATE}.jinja"}
    files |= {path.stem: path for path in sorted(directory.glob(f"additional_{_TEMPLATE}s/*.jinja"))[:_MAX_TEMPLATES]}
    templates = {name: _read_text(path) for name, path in files.items() if path.exists()}
    path = directory / "tokenizer_config.json"
    if not templates:
        templates = _named_templates(config.get(_TEMPLATE), path)
    if not templates:
        path = directory / f"{_TEMPLATE}.json"
        templates = _named_templates(read_object(path).get(_TEMPLATE), path)
    return templates


def _named_templates(given: object, path: Path) -> dict[str, str]:
    """One source, or a list of {"name": ..., "template": ...}."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {"default": given}
    try:
        named = msgspec.convert(given, list[_NamedTemplate])
    except msgspec.ValidationError as error:
        raise InputError(
            f"{path}: `{_TEMPLATE}` is neither a string nor a list of objects with name and template: {error}"
        ) from error
    return {entry.name: entry.template for entry in named[:_MAX_TEMPLATES]}


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


def _read_text(path: Path) -> str:
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8: {error}") from error
