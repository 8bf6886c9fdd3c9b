"""A training state as one block of safetensors: tensors, and some facts in its header. Nothing is ever unpickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from placement.errors import InputError
from placement.files import VERSION

_LENGTH_BYTES = 8
_HEADER = "__metadata__"


@dataclass(frozen=True)
class State:
    """Everything that decides how training goes on after `step` steps."""

    step: int
    tensors: dict[str, Tensor]


def pack(state: State) -> bytes:
    whole = {name: tensor.detach().contiguous() for name, tensor in state.tensors.items()}
    packed: bytes = save(whole, {"version": str(VERSION), "step": str(state.step)})
    return packed


def unpack(data: bytes) -> State:
    """An InputError says what is wrong with the data."""
    try:
        facts = _facts(data)
        if facts["version"] != str(VERSION):
            raise InputError(f"a training state of version {facts['version']}; this Penstock reads version {VERSION}")
        return State(int(facts["step"]), load(data))
    except (SafetensorError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not a training state: {error}") from error


def _facts(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    header = msgspec.json.decode(data[_LENGTH_BYTES : _LENGTH_BYTES + length], type=dict[str, Any])
    facts: dict[str, Any] = header[_HEADER]
    return facts
