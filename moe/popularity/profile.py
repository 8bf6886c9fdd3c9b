"""What was learned of a model's routes, kept beside its weights: arrays in an .npz, without pickles.

Replaced whole or not at all; what is read back is checked before it is believed.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moe.archive import unpacked
from moe.popularity.paths import LONGEST, Paths
from placement.errors import InputError
from placement.files import VERSION, check_version, read_bytes, replace_file

FILE_NAME = "expert_popularity.npz"
MOST_BYTES = 2**32
"""Unpacked."""


def save_profile(path: Path, paths: Paths) -> None:
    """Usually FILE_NAME in the model's folder."""
    arrays: dict[str, Any] = {
        "version": np.array(VERSION),
        "tokens": np.array(paths.marginal.tokens),
        "choices": paths.marginal.choices,
        "length": np.array(len(paths.tables)),
    }
    for length, tables in enumerate(paths.tables, 1):
        keys = [np.fromiter(table.rows, np.int64, len(table.rows)) for table in tables]
        arrays[f"path{length}_layer"] = np.repeat(np.arange(len(tables)), [len(key) for key in keys])
        arrays[f"path{length}_key"] = np.concatenate(keys)
        arrays[f"path{length}_tokens"] = np.concatenate([table.tokens for table in tables])
        rows = [table.choices.reshape(-1, table.experts) for table in tables]
        arrays[f"path{length}_choices"] = np.concatenate(rows).astype(np.float32)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    replace_file(path, buffer.getvalue())


def load_profile(path: Path) -> Paths:
    """An InputError says what is wrong with the file."""
    try:
        arrays = unpacked(read_bytes(path), MOST_BYTES)
    except InputError as error:
        raise InputError(f"{path}: no profile of expert popularity: {error}") from error
    check_version(arrays["version"].tolist() if "version" in arrays else None, path)
    try:
        return _paths(arrays)
    except (KeyError, ValueError, TypeError, IndexError, AssertionError) as error:
        reason = f"no `{error.args[0]}`" if isinstance(error, KeyError) else str(error) or "shapes that do not agree"
        raise InputError(f"{path}: a damaged profile of expert popularity: {reason}") from error


def _paths(arrays: dict[str, NDArray[Any]]) -> Paths:
    choices = arrays["choices"]
    assert choices.ndim == 2, "choices must be [layers, experts]"
    layers, experts = choices.shape
    assert experts > 0, "no experts"
    length, tokens = int(arrays["length"]), int(arrays["tokens"])
    assert 1 <= length <= LONGEST, f"paths of {length} layers"
    _check_counts(choices)
    assert tokens >= 0, "negative tokens"
    paths = Paths(layers, experts, length)
    paths.marginal.choices, paths.marginal.tokens = choices.astype(np.float64), tokens
    for number, tables in enumerate(paths.tables, 1):
        layer, key = arrays[f"path{number}_layer"], arrays[f"path{number}_key"]
        seen, followed = arrays[f"path{number}_tokens"], arrays[f"path{number}_choices"]
        assert layer.shape == key.shape == seen.shape == (len(followed),)
        assert followed.shape[1:] == (experts,)
        assert layer.dtype.kind == key.dtype.kind == "i", "paths must be whole numbers"
        assert bool(np.all((layer >= 0) & (layer < layers))), "paths into layers that are not there"
        assert bool(np.all((key >= 0) & (key < experts**number))), "paths through experts that are not there"
        _check_counts(seen)
        _check_counts(followed)
        for at, table in enumerate(tables):
            own = layer == at
            table.rows = {path: row for row, path in enumerate(key[own].tolist())}
            assert len(table.rows) == int(own.sum()), "a path is there twice"
            table.tokens, table.choices = seen[own].astype(np.float64), followed[own].astype(np.float64)
    return paths


def _check_counts(values: NDArray[Any]) -> None:
    assert values.dtype.kind in "iuf", "counts must be numbers"
    assert bool(np.all(np.isfinite(values) & (values >= 0))), "counts that are negative or not numbers"
