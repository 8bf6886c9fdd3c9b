"""Reading and writing the safetensors files of a model directory. Reads slices without copying the file; nothing
is ever unpickled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from placement.errors import InputError
from placement.files import replace_file
from serving.models.names import Piece, Source

_INDEX = "model.safetensors.index.json"


class Checkpoint:
    """The tensors of one model directory; a file is mapped when a tensor of it is first asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, Any] = {}
        self._where = self._find()

    def read(self, source: Source, dtype: torch.dtype) -> Tensor:
        """The pieces laid on top of each other; a single piece that needs no change stays a view of the file."""
        parts = [self._piece(piece).to(dtype) for piece in source.pieces]
        if source.padding:
            parts.append(torch.zeros(source.padding, *parts[0].shape[1:], dtype=dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _piece(self, piece: Piece) -> Tensor:
        path = self._where.get(piece.name)
        if path is None:
            raise InputError(f"{self.directory}: no tensor {piece.name!r} in its safetensors files")
        try:
            stored = self._open(path).get_slice(piece.name)
            shape = tuple(stored.get_shape())
            if shape != piece.shape:
                raise InputError(
                    f"{path}: {piece.name} has the shape {list(shape)}; config.json asks for {list(piece.shape)}"
                )
            part: Tensor
            if piece.dim is None:
                part = stored[:]
            elif piece.dim == 0:
                part = stored[piece.start : piece.stop]
            else:
                part = stored[:, piece.start : piece.stop]
        except SafetensorError as error:
            raise InputError(f"{path}: cannot read {piece.name}: {error}") from error
        if not part.is_floating_point():
            raise InputError(f"{path}: {piece.name} is {part.dtype}; weights must be floating point")
        return part.t() if piece.transpose else part

    def _find(self) -> dict[str, Path]:
        """Which file holds each tensor: what the index says, or what the files themselves say."""
        index = self.directory / _INDEX
        if index.exists():
            return self._read_index(index)
        paths = sorted(self.directory.glob("*.safetensors"))
        if not paths:
            raise InputError(f"{self.directory}: no *.safetensors file; weights are read from nothing else")
        return {name: path for path in paths for name in self._open(path).keys()}  # noqa: SIM118

    def _read_index(self, index: Path) -> dict[str, Path]:
        try:
            entries = json.loads(index.read_bytes())["weight_map"]
            return {str(name): self.directory / Path(file).name for name, file in entries.items()}
        except (ValueError, KeyError, AttributeError, TypeError, OSError) as error:
            raise InputError(f"{index}: not a safetensors index: {error}") from error

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safe_open(path, framework="pt", device="cpu").__enter__()  # type: ignore[no-untyped-call]
            except FileNotFoundError as error:
                raise InputError(f"{path}: no such file, but the index names it") from error
            except (SafetensorError, OSError) as error:
                raise InputError(f"{path}: damaged or cut short: {error}") from error
        return self._files[path]


def write_checkpoint(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write one safetensors file; an older one is replaced at once or stays."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    replace_file(path, save(whole, {"format": "pt"}))


def stored_tensors(parameters: dict[str, Tensor], sources: dict[str, Source]) -> dict[str, Tensor]:
    """The stored form of an unsharded model's parameters: `sources` read backwards."""
    found: dict[str, Tensor] = {}
    for name, source in sources.items():
        rows = [_rows(piece) for piece in source.pieces]
        parameter = parameters[name]
        matrix = parameter if parameter.dim() < 3 else parameter.flatten(0, -2)
        for piece, part in zip(source.pieces, matrix.split(rows), strict=True):
            found[piece.name] = part.t() if piece.transpose else part
    return found


def _rows(piece: Piece) -> int:
    return piece.shape[0] if piece.dim is None or piece.dim == 1 else piece.stop - piece.start
