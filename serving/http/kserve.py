"""/v2: KServe's open inference protocol for models that answer in one pass.

Input is `text` (BYTES [n]), or `input_ids` (INT64 [n, length]; optionally with `attention_mask` and `token_type_ids`);
the answer is `embedding` or `scores`, FP32 [n, width].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from serving.http.answers import encode
from serving.http.call import Call
from serving.http.errors import BadRequest, NotFound, Unavailable
from serving.http.kserve_tensors import (
    BinarySize,
    Datatype,
    InferAnswer,
    InferRequest,
    OutputTensor,
    Tensor,
    read_request,
)
from serving.http.one_pass import OnePass
from serving.http.prompts import Prompts
from serving.http.service import ServedModel, Service
from serving.http.wishes import find_model, read_wishes

_VERSION = "1"
_JSON_LENGTH = b"inference-header-content-length"
_TOKENS = {"input_ids", "attention_mask", "token_type_ids"}


class ServerMetadata(msgspec.Struct, frozen=True):
    name: str = "penstock"
    version: str = ""
    extensions: tuple[str, ...] = ("binary_tensor_data",)


class TensorMetadata(msgspec.Struct, frozen=True):
    name: str
    datatype: Datatype
    shape: list[int]
    """-1: any size."""


class ModelMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    labels: Sequence[str] = ()
    """Ours: what a classifier's scores are of."""


class Liveness(msgspec.Struct, frozen=True):
    live: bool = True


class Readiness(msgspec.Struct, frozen=True):
    name: str
    ready: bool


class KServe:
    def __init__(self, service: Service, one_pass: OnePass, prompts: Prompts) -> None:
        self._service, self._one_pass, self._prompts = service, one_pass, prompts

    async def server(self, call: Call) -> None:
        await call.answer(encode(ServerMetadata()))

    async def live(self, call: Call) -> None:
        await call.answer(encode(Liveness()))

    async def ready(self, call: Call) -> None:
        unready = self._service.unready()
        await call.answer(encode(Readiness("penstock", not unready)), 503 if unready else 200)

    async def model(self, call: Call) -> None:
        model = self._find(call)
        inputs = [TensorMetadata("text", "BYTES", [-1])]
        if not model.is_generating:
            inputs.append(TensorMetadata("input_ids", "INT64", [-1, -1]))
        outputs = [TensorMetadata(_output(model), "FP32", [-1, model.width])]
        if model.is_generating:
            outputs = [TensorMetadata("text", "BYTES", [-1])]
        platform = f"penstock_{model.kind}"
        await call.answer(encode(ModelMetadata(model.name, [_VERSION], platform, inputs, outputs, model.labels)))

    async def model_ready(self, call: Call) -> None:
        model = self._find(call)
        why = self._service.unready().get(model.name)
        if why is not None:
            raise Unavailable(f"model {model.name!r} is not ready: {why}", code="no-replica", retry_after_s=1)
        await call.answer(encode(Readiness(model.name, True)))

    async def infer(self, call: Call) -> None:
        model = self._find(call)
        if model.is_generating:
            raise BadRequest(f"model {model.name!r} generates text; ask it at /v1/completions", param="model")
        wishes = read_wishes(call)
        request, tensors = read_request(await call.body(), call.headers.get(_JSON_LENGTH))
        if not {one.name for one in request.outputs or ()} <= {_output(model)}:
            raise BadRequest(f"outputs: model {model.name!r} has {_output(model)!r} alone", param="outputs")
        inputs, kinds = await self._inputs(model, tensors)
        values = await self._one_pass(call, model, inputs, wishes, kinds)
        await _send(call, model, request, values)

    def _find(self, call: Call) -> ServedModel:
        found = call.scope["path_params"]
        if found.get("version", _VERSION) != _VERSION:
            raise NotFound(f"model {found['model']!r} has version {_VERSION} alone", "version", "version_not_found")
        return find_model(self._service.models, found["model"])

    async def _inputs(
        self, model: ServedModel, tensors: Mapping[str, Tensor]
    ) -> tuple[list[list[int]], list[list[int]] | None]:
        """Tokens of each input, and which sentence each token is of."""
        rows = _rows(tensors)
        most = self._service.settings.inputs
        if not 0 < rows <= most:
            raise BadRequest(f"inputs: {rows} rows; 1 to {most} are accepted", param="inputs")
        if "text" in tensors:
            texts = tensors["text"].values
            assert isinstance(texts, list)
            return await self._prompts.tokens(model, texts, "text"), None
        mask = _numbers(tensors, "attention_mask")
        ids, kinds = (_cut(_numbers(tensors, name), mask) for name in ("input_ids", "token_type_ids"))
        assert ids is not None
        return await self._prompts.tokens(model, ids, "input_ids"), kinds


def _rows(tensors: Mapping[str, Tensor]) -> int:
    """How many inputs there are; BadRequest unless the tensors are of one of the two kinds."""
    if set(tensors) == {"text"}:
        text = tensors["text"]
        if text.datatype != "BYTES" or not (len(text.shape) == 1 or text.shape[1:] == (1,)):
            raise BadRequest("input 'text' must be BYTES of shape [n]", param="text")
        return text.shape[0]
    if "input_ids" not in tensors or not set(tensors) <= _TOKENS:
        raise BadRequest(
            "inputs: `text`, or `input_ids` (with attention_mask, token_type_ids), is needed", param="inputs"
        )
    shape = tensors["input_ids"].shape
    for tensor in tensors.values():
        if tensor.datatype not in ("INT64", "INT32") or len(shape) != 2 or tensor.shape != shape:
            raise BadRequest(f"input {tensor.name!r} must be INT64 [n, length], as input_ids", param=tensor.name)
    return shape[0]


def _numbers(tensors: Mapping[str, Tensor], name: str) -> NDArray[np.int64] | None:
    if name not in tensors:
        return None
    values = tensors[name].values
    assert not isinstance(values, list)
    if values.size and values.min() < 0:
        raise BadRequest(f"input {name!r} has a number below 0", param=name)
    return values.astype(np.int64)


def _cut(rows: NDArray[np.int64] | None, mask: NDArray[np.int64] | None) -> list[list[int]] | None:
    """What the mask lets be seen of each row."""
    if rows is None:
        return None
    if mask is None:
        return rows.tolist()  # type: ignore[no-any-return]
    return [row[seen != 0].tolist() for row, seen in zip(rows, mask, strict=True)]


async def _send(call: Call, model: ServedModel, request: InferRequest, values: NDArray[np.float32]) -> None:
    name, shape = _output(model), list(values.shape)
    version = _VERSION
    if not _wants_bytes(request):
        tensor = OutputTensor(name=name, datatype="FP32", shape=shape, data=values.ravel().tolist())
        answer = InferAnswer(model_name=model.name, model_version=version, outputs=[tensor], id=request.id)
        await call.answer(encode(answer))
        return
    raw = values.astype("<f4").tobytes()
    tensor = OutputTensor(name=name, datatype="FP32", shape=shape, parameters=BinarySize(len(raw)))
    head = encode(InferAnswer(model_name=model.name, model_version=version, outputs=[tensor], id=request.id))
    await call.answer(head + raw, content_type=b"application/octet-stream", headers=[(_JSON_LENGTH, b"%d" % len(head))])


def _wants_bytes(request: InferRequest) -> bool:
    """What the output asks for, or else the request."""
    for output in request.outputs or ():
        if output.parameters is not None and output.parameters.binary_data is not None:
            return output.parameters.binary_data
    return request.parameters is not None and bool(request.parameters.binary_data_output)


def _output(model: ServedModel) -> str:
    return "scores" if model.kind == "classify" else "embedding"
