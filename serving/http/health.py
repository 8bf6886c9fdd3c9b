"""/livez, /readyz, /health and /metrics: for those who look after the server."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from serving.http.answers import encode
from serving.http.call import Call
from serving.http.exposition import CONTENT_TYPE, Exposition
from serving.http.service import Service


class HealthAnswer(msgspec.Struct, frozen=True):
    status: str
    models: Mapping[str, str] = {}
    """Those that cannot be served, and why."""


class Health:
    def __init__(self, service: Service, exposition: Exposition) -> None:
        self._service, self._exposition = service, exposition
        self.is_stopping = False

    async def live(self, call: Call) -> None:
        """The process answers."""
        await call.answer(encode(HealthAnswer("ok")))

    async def ready(self, call: Call) -> None:
        """Every model has a group that has shown to work."""
        unready = self._service.unready()
        is_ready = not unready and not self.is_stopping
        await self._answer(call, is_ready, unready)

    async def health(self, call: Call) -> None:
        """Some model can be served."""
        unready = self._service.unready()
        await self._answer(call, len(unready) < len(self._service.models) and not self.is_stopping, unready)

    async def metrics(self, call: Call) -> None:
        await call.answer(self._exposition.text(), content_type=CONTENT_TYPE)

    async def _answer(self, call: Call, is_well: bool, unready: Mapping[str, str]) -> None:
        status = "stopping" if self.is_stopping else "ok" if is_well else "unready"
        headers = None if is_well else [(b"retry-after", b"1")]
        await call.answer(encode(HealthAnswer(status, unready)), 200 if is_well else 503, headers=headers)
