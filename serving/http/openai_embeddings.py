"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from serving.http.answers import encode
from serving.http.call import Call
from serving.http.decode import decode
from serving.http.errors import BadRequest
from serving.http.knobs import ModelName, TokenId
from serving.http.one_pass import OnePass
from serving.http.openai_types import Embedding, EmbeddingAnswer, EmbeddingUsage
from serving.http.prompts import Prompts, split_inputs
from serving.http.service import Service
from serving.http.wishes import find_model, read_wishes


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelName
    input: str | list[str | TokenId | list[TokenId]]
    """A text, several, the tokens of one, or the tokens of several."""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    """Not served: models answer in their own width."""
    user: str | None = None


class Embeddings:
    def __init__(self, service: Service, one_pass: OnePass, prompts: Prompts) -> None:
        self._service, self._one_pass, self._prompts = service, one_pass, prompts
        self._decoder = msgspec.json.Decoder(EmbeddingRequest)

    async def __call__(self, call: Call) -> None:
        request = decode(self._decoder, await call.body())
        model = find_model(self._service.models, request.model, "embed")
        wishes = read_wishes(call)
        if request.dimensions is not None and request.dimensions != model.width:
            raise BadRequest("dimensions: not served; leave it out", param="dimensions")
        given = split_inputs(request.input, "input")
        if len(given) > self._service.settings.inputs:
            raise BadRequest(f"input: {len(given)} texts; at most {self._service.settings.inputs}", param="input")
        inputs = await self._prompts.tokens(model, given, "input")
        values = await self._one_pass(call, model, inputs, wishes)
        tokens = sum(map(len, inputs))
        rows = _as_base64(values) if request.encoding_format == "base64" else values.tolist()
        data = [Embedding(index, row) for index, row in enumerate(rows)]
        await call.answer(encode(EmbeddingAnswer(data, model.name, EmbeddingUsage(tokens, tokens))))


def _as_base64(values: NDArray[np.float32]) -> list[str]:
    return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in values]
