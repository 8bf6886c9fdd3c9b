"""The OpenAPI page, written from the routes: what they take and give is told by the types they decode and encode."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from serving.http.errors import ErrorAnswer
from serving.http.routes import Route

_PARAMETER = re.compile(r"{(\w+)(?::path)?}")
_HEADERS = {
    "x-slo-ms": "Milliseconds it must be answered within; when it generates, to the first token.",
    "x-slo-tpot-ms": "Milliseconds a further token may take.",
    "x-priority": "interactive, standard or batch.",
    "x-request-id": "Comes back in the answer and stands in the log.",
}


class PlainError(msgspec.Struct, frozen=True):
    """How KServe's routes tell errors."""

    error: str


def openapi_document(routes: Sequence[Route]) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.body, route.answer) if kind is not None]
    types = list(dict.fromkeys([*types, ErrorAnswer, PlainError]))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    known = dict(zip(types, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": "1", "description": "Many models from one pool of devices."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, known: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "tags": [route.tag],
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "parameters": [*_path_parameters(route), *_header_parameters(route)],
        "responses": _responses(route, known),
    }
    if route.access != "open":
        operation["security"] = [{"key": []}]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": known[route.body]}}}
    return operation


def _path_parameters(route: Route) -> Iterable[dict[str, Any]]:
    for name in _PARAMETER.findall(route.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _header_parameters(route: Route) -> Iterable[dict[str, Any]]:
    if route.tag in ("openai", "kserve") and route.method == "POST":
        for name, text in _HEADERS.items():
            yield {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}


def _responses(route: Route, known: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {route.media: {"schema": known[route.answer] if route.answer is not None else {}}}
    if route.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if route.any_type:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    error = {"schema": known[PlainError if route.plain_errors else ErrorAnswer]}
    responses: dict[str, Any] = {
        str(status): {"description": "Done" if status == 200 else "Not now", "content": content}
        for status in route.statuses
    }
    responses["4XX"] = {"description": "Not what can be done", "content": {"application/json": error}}
    if "503" not in responses:
        responses["503"] = {"description": "Ask again after Retry-After", "content": {"application/json": error}}
    return responses
