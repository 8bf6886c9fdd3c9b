"""Prompts from a file: .txt with one a line, or .jsonl with a string or an object with `prompt` or `text` a line."""

from __future__ import annotations

from pathlib import Path

import msgspec

from placement.errors import InputError
from placement.files import read_bytes

KINDS = (".txt", ".jsonl")


def read_prompts(path: Path) -> list[str]:
    """Those that are not empty; an InputError names the file and the line."""
    if path.suffix not in KINDS:
        raise InputError(f"{path}: prompts are {' or '.join(KINDS)}")
    try:
        lines = read_bytes(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text") from error
    named = [(f"{path}: line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    prompts = [line if path.suffix == ".txt" else _prompt(line, where) for where, line in named]
    if not prompts:
        raise InputError(f"{path}: no prompts in it")
    return prompts


def _prompt(line: str, where: str) -> str:
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    if isinstance(value, dict):
        value = value.get("prompt", value.get("text"))
    if not isinstance(value, str):
        raise InputError(f"{where}: expected a string, or an object with `prompt` or `text`")
    return value
