"""The outermost ASGI application: gives each request its id, sends it the shortest way, counts and logs how it ended.

Paths without parameters, or with the name of a model that is served, are found in a table; FastAPI's router finds the
rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from starlette.types import ASGIApp

from serving.http.call import Call, Message, Receive, Send
from serving.http.endpoint import CALL, Endpoint, fail
from serving.http.health import Health
from serving.http.logs import RequestLog
from serving.http.meters import Meters
from serving.http.settings import HttpSettings
from serving.http.traces import Tracer

_LONGEST_PATH = 200


class Door:
    def __init__(
        self,
        app: ASGIApp,
        endpoints: Iterable[Endpoint],
        models: Iterable[str],
        settings: HttpSettings,
        meters: Meters,
        health: Health,
        tracer: Tracer | None = None,
    ) -> None:
        self.app = app
        """FastAPI's; it has all routes, and the OpenAPI page."""
        self.endpoints = tuple(endpoints)
        self.meters = meters
        self.health = health
        self.tracer = tracer
        self.log = RequestLog()
        self._known = _known_paths(self.endpoints, tuple(models))
        self._settings = settings

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call = Call(scope, receive, send, self._settings)
        span = None if self.tracer is None else self.tracer.begin(call)
        self.meters.open += 1
        try:
            await self._answer(call, scope, receive)
        finally:
            self.meters.open -= 1
            route = call.facts.pop("route", "other")
            self.meters.answers[route, call.status] += 1
            if span is not None:
                span.end(call, route)
            if self._settings.log_requests:
                self._report(call, route)

    async def close(self) -> None:
        """After the last request: what is still to be told is told."""
        self.log.flush()
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)

    async def _answer(self, call: Call, scope: Message, receive: Receive) -> None:
        known = self._known.get(scope["method"] + scope["path"])
        if known is not None:
            endpoint, scope["path_params"] = known
            await endpoint.run(call)
            return
        scope[CALL] = call
        try:
            await self.app(scope, receive, call.pass_on)
        except Exception as error:
            await fail(call, error)

    def _report(self, call: Call, route: str) -> None:
        if route in _QUIET:
            return
        scope, ms = call.scope, round((time.perf_counter() - call.began_s) * 1e3, 3)
        facts = {"id": call.id, "method": scope["method"], "path": scope["path"][:_LONGEST_PATH], "status": call.status}
        self.log.write(facts | {"ms": ms, "tenant": call.tenant} | call.facts)


def _known_paths(endpoints: Iterable[Endpoint], models: Sequence[str]) -> dict[str, tuple[Endpoint, dict[str, str]]]:
    """By method and path: who answers, with which parameters."""
    known: dict[str, tuple[Endpoint, dict[str, str]]] = {}
    for one in endpoints:
        method, path = one.route.method, one.route.path.replace(":path}", "}")
        for model in models if "{model}" in path else ():
            known[method + path.replace("{model}", model)] = one, {"model": model}
        known[method + path] = one, {}
    return {path: found for path, found in known.items() if "{" not in path}


_QUIET = {"/livez", "/readyz", "/health", "/metrics"}
"""Asked every few seconds by machines; not told."""
