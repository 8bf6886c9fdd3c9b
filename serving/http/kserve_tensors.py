"""Tensors of KServe's v2 protocol: as JSON, or as bytes behind it (the binary tensor extension)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from serving.http.decode import decode
from serving.http.errors import BadRequest

Datatype = Literal["BYTES", "FP32", "INT64", "INT32"]
_NUMBERS: Mapping[str, str] = {"FP32": "<f4", "INT64": "<i8", "INT32": "<i4"}
_MOST_ELEMENTS = 2**24
Size = Annotated[int, Meta(ge=0, le=_MOST_ELEMENTS)]


class InputParameters(msgspec.Struct, frozen=True):
    binary_data_size: Size | None = None


class InputTensor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    datatype: Datatype
    shape: Annotated[list[Size], Meta(min_length=1, max_length=4)]
    data: list[Any] | None = None
    """Row by row, flat or nested; absent when the tensor comes as bytes."""
    parameters: InputParameters | None = None


class OutputParameters(msgspec.Struct, frozen=True):
    binary_data: bool | None = None


class RequestedOutput(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    parameters: OutputParameters | None = None


class RequestParameters(msgspec.Struct, frozen=True):
    binary_data_output: bool | None = None


class InferRequest(msgspec.Struct, frozen=True, kw_only=True):
    inputs: Annotated[list[InputTensor], Meta(min_length=1, max_length=16)]
    outputs: list[RequestedOutput] | None = None
    id: Annotated[str, Meta(max_length=256)] | None = None
    parameters: RequestParameters | None = None


class BinarySize(msgspec.Struct, frozen=True):
    binary_data_size: int


class OutputTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    datatype: Datatype
    shape: list[int]
    data: list[float] | None = None
    parameters: BinarySize | None = None


class InferAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str | None = None


@dataclass(frozen=True)
class Tensor:
    """`values`: texts, or numbers [shape]."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    values: list[str] | NDArray[Any]


_decoder = msgspec.json.Decoder(InferRequest)


def read_request(body: bytes, json_bytes: bytes | None) -> tuple[InferRequest, dict[str, Tensor]]:
    """`json_bytes`: the Inference-Header-Content-Length header, when bytes follow the JSON."""
    length = len(body)
    if json_bytes is not None:
        if not (json_bytes.isdigit() and len(json_bytes) <= 12 and int(json_bytes) <= len(body)):
            raise BadRequest("inference-header-content-length is not a length within the body")
        length = int(json_bytes)
    request = decode(_decoder, body[:length])
    tensors: dict[str, Tensor] = {}
    at = length
    for given in request.inputs:
        size = None if given.parameters is None else given.parameters.binary_data_size
        raw = None
        if size is not None:
            raw, at = body[at : at + size], at + size
            if len(raw) < size:
                raise BadRequest(f"input {given.name!r}: {len(raw)} of its {size} bytes are there")
        if given.name in tensors:
            raise BadRequest(f"input {given.name!r} is given twice")
        tensors[given.name] = _tensor(given, raw)
    if at < len(body):
        raise BadRequest(f"{len(body) - at} bytes follow the last input")
    return request, tensors


def _tensor(given: InputTensor, raw: bytes | None) -> Tensor:
    count = 1
    for size in given.shape:
        count *= size
    if count > _MOST_ELEMENTS:
        raise BadRequest(f"input {given.name!r}: {count} elements; at most {_MOST_ELEMENTS} are accepted")
    if (raw is None) == (given.data is None):
        raise BadRequest(f"input {given.name!r}: either data or binary_data_size is needed")
    values = _from_bytes(given, raw) if raw is not None else _from_json(given)
    if len(values) != count:
        raise BadRequest(f"input {given.name!r}: {len(values)} elements; shape {given.shape} has {count}")
    shaped = values if isinstance(values, list) else values.reshape(given.shape)
    return Tensor(given.name, given.datatype, tuple(given.shape), shaped)


def _from_bytes(given: InputTensor, raw: bytes) -> list[str] | NDArray[Any]:
    if given.datatype != "BYTES":
        kind = np.dtype(_NUMBERS[given.datatype])
        if len(raw) % kind.itemsize:
            raise BadRequest(f"input {given.name!r}: {len(raw)} bytes are no whole number of {given.datatype}")
        return np.frombuffer(raw, kind)
    texts, at = [], 0
    while at < len(raw):
        end = at + 4
        size = struct.unpack_from("<I", raw, at)[0] if end <= len(raw) else len(raw)
        if end + size > len(raw):
            raise BadRequest(f"input {given.name!r}: an element reaches beyond the tensor's bytes")
        texts.append(_text(raw[end : end + size], given.name))
        at = end + size
    return texts


def _from_json(given: InputTensor) -> list[str] | NDArray[Any]:
    flat: list[Any] = []
    _flatten(given.data or [], flat, len(given.shape))
    kinds: dict[str, set[type]] = {"BYTES": {str}, "FP32": {int, float}}
    if not set(map(type, flat)) <= kinds.get(given.datatype, {int}):
        raise BadRequest(f"input {given.name!r}: an element is no {given.datatype}")
    if given.datatype == "BYTES":
        return flat
    try:
        return np.array(flat, np.dtype(_NUMBERS[given.datatype]))
    except OverflowError:
        raise BadRequest(f"input {given.name!r}: a number is out of the range of {given.datatype}") from None


def _flatten(values: list[Any], flat: list[Any], depth: int) -> None:
    if list not in set(map(type, values)):
        flat += values
        return
    for value in values:
        if isinstance(value, list) and depth > 1:
            _flatten(value, flat, depth - 1)
        else:
            flat.append(value)


def _text(raw: bytes, name: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"input {name!r}: an element is not valid UTF-8") from None
