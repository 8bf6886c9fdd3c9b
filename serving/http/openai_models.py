"""GET /v1/models and /v1/models/{model}."""

from __future__ import annotations

from collections.abc import Mapping

from serving.http.answers import encode
from serving.http.call import Call
from serving.http.openai_types import ModelAnswer, ModelsAnswer
from serving.http.service import ServedModel, Service
from serving.http.wishes import find_model


class Models:
    def __init__(self, service: Service) -> None:
        self._models, self._unready = service.models, service.unready

    async def list(self, call: Call) -> None:
        reasons = self._unready()
        await call.answer(encode(ModelsAnswer([_answer(model, reasons) for model in self._models.values()])))

    async def show(self, call: Call) -> None:
        model = find_model(self._models, call.scope["path_params"]["model"])
        await call.answer(encode(_answer(model, self._unready())))


def _answer(model: ServedModel, reasons: Mapping[str, str]) -> ModelAnswer:
    reason = reasons.get(model.name)
    return ModelAnswer(model.name, model.created, model.state(), model.kind, model.max_positions, reason)
