"""/admin: the plan that runs, a new one, why things are as they are. The controller does it; this is its door."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from serving.http.answers import encode
from serving.http.call import Call
from serving.http.decode import decode
from serving.http.errors import NotFound, Unavailable
from serving.http.service import Admin, ExplainKind, Service

_KINDS: tuple[ExplainKind, ...] = get_args(ExplainKind)


class AdminRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._decoder = msgspec.json.Decoder(dict[str, Any])

    async def plan(self, call: Call) -> None:
        await call.answer(encode(await self._admin().plan()))

    async def apply_plan(self, call: Call) -> None:
        document = decode(self._decoder, await call.body())
        await call.answer(encode(await self._admin().apply_plan(document)))

    async def explain(self, call: Call) -> None:
        kind = call.scope["path_params"]["kind"]
        if kind not in _KINDS:
            raise NotFound(f"{kind[:50]!r} cannot be explained; one of {', '.join(_KINDS)} can", param="kind")
        await call.answer(encode(await self._admin().explain(kind)))

    async def status(self, call: Call) -> None:
        await call.answer(encode(await self._admin().status()))

    async def suggest(self, call: Call) -> None:
        decode(self._decoder, await call.body())
        await call.answer(encode(await self._admin().suggest()))

    def _admin(self) -> Admin:
        if self._service.admin is None:
            raise Unavailable("no controller is there", code="no_controller", retry_after_s=1)
        return self._service.admin
