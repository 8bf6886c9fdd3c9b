"""The tokens that a job trains on: made of its text once, and read by every worker as they lie on the disk."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from placement.errors import InputError
from placement.files import replace_file
from training.arrays import Ints

TOKENS = "tokens.npy"
LINES_AT_ONCE = 4096


def prepare_tokens(data: Path, model: Path, folder: Path) -> Path:
    """FOLDER/tokens.npy from a text; a file of tokens is used where it lies."""
    if data.suffix == ".npy":
        return data
    path = folder / TOKENS
    if not path.exists():
        buffer = io.BytesIO()
        np.save(buffer, _encode(data, model / "tokenizer.json"))
        replace_file(path, buffer.getvalue())
    return path


def open_tokens(path: Path, vocabulary: int, context: int) -> Ints:
    """[tokens], mapped, not read; all of them are looked at once."""
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: not a .npy file of tokens: {error}") from error
    if not isinstance(tokens, np.ndarray) or tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise InputError(f"{path}: tokens are whole numbers in one dimension")
    if len(tokens) < context + 1:
        raise InputError(f"{path}: {len(tokens)} tokens; a sequence of {context} needs {context + 1}")
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary:
        raise InputError(f"{path}: tokens from {tokens.min()} to {tokens.max()}; the model has 0 to {vocabulary - 1}")
    return tokens


def _encode(data: Path, tokenizer_path: Path) -> Ints:
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"{tokenizer_path}: not a tokenizer: {error}") from error
    try:
        lines = data.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{data}: not a text in UTF-8: {error}") from error
    found: list[int] = []
    for start in range(0, len(lines), LINES_AT_ONCE):
        found += tokenizer.encode("".join(lines[start : start + LINES_AT_ONCE]), add_special_tokens=False).ids
    return np.array(found, np.int32)
